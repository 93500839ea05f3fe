"""What every certificate of a kind says in the same words.

The builder writes it and `verify` holds a certificate to it, so that nobody can
call covered what is not.
"""

from collections.abc import Mapping
from typing import Any

from tff_dpemb.privacy.certificate import schema

_NOT_COVERED = schema.NOT_COVERED

# By kind: what the guarantee is about.
PROTECTED: Mapping[str, tuple[str, ...]] = {
  'model': (
    'the final model and every checkpoint of the backbone',
    'the clip norms of all rounds',
  ),
  'synthetic': ('the mixture and every set sampled from it',),
}

# By kind: what the private data were used for, and whether it is in epsilon.
ACCESSES: Mapping[str, Mapping[str, str]] = {
  'model': {
    'updates of the backbone in each round': 'covered',
    'clip norm of each round': 'covered',
    'choice of settings (tuning)': _NOT_COVERED,
    'normalisation of images': 'public',
    'number of users and of identities': 'public',
    'training metrics (loss, cohort sizes)': _NOT_COVERED,
    'evaluation on held-out identities': _NOT_COVERED,
  },
  'synthetic': {
    'sums, counts and second moments of embeddings': 'covered',
    'training of the encoder (bounded by the composition only)': _NOT_COVERED,
    'set of classes': 'public',
    'choice of settings (tuning)': _NOT_COVERED,
    'evaluation on real held-out data': _NOT_COVERED,
  },
}


def problems(content: Mapping[str, Any]) -> list[str]:
  """Returns where a certificate says something else."""
  kind, found = content['kind'], []
  protected = content['released']['protected']
  if list(protected) != list(PROTECTED[kind]):
    found.append(
      f'released.protected must be {list(PROTECTED[kind])}, got {protected}.'
    )
  listed: dict[str, set[str]] = {}
  for access in content['data_accesses']:
    listed.setdefault(access['what'], set()).add(access['status'])
  for what, status in ACCESSES[kind].items():
    if listed.get(what) != {status}:
      found.append(
        f'data_accesses must say once that {what!r} is {status!r}, got'
        f' {sorted(listed.get(what, []))}.'
      )
  covered = {what for what, statuses in listed.items() if 'covered' in statuses}
  for what in sorted(covered - set(ACCESSES[kind])):
    found.append(
      f'data_accesses must not call {what!r} covered: epsilon is of what the'
      ' mechanism reveals.'
    )
  participation = content['sampling']['participation']
  is_everyone = participation == schema.EVERYONE
  if is_everyone != (kind == 'synthetic'):
    found.append(
      f'sampling.participation must be that of a {kind}, got {participation!r}.'
    )
  return found
