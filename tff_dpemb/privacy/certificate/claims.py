"""What every certificate of a kind says is protected, accessed and covered.

The builder writes it and `verify` holds a certificate to it, so that nobody can
call covered what is not. These are names of facts; `TEXTS` has the words for
people, which may change.
"""

from collections.abc import Mapping

from tff_dpemb.privacy.certificate import document

# By kind: what the guarantee is about.
PROTECTED: Mapping[str, tuple[str, ...]] = {
  'model': ('backbone', 'clip_norms'),
  'synthetic': ('mixture',),
}

# By kind: what the private data were used for, and whether it is in epsilon.
ACCESSES: Mapping[str, Mapping[str, str]] = {
  'model': {
    'backbone_updates': 'covered',
    'round_clip_norms': 'covered',
    'settings': document.NOT_COVERED,
    'normalisation': 'public',
    'population_and_identities': 'public',
    'training_metrics': document.NOT_COVERED,
    'held_out_evaluation': document.NOT_COVERED,
  },
  'synthetic': {
    'embedding_sums': 'covered',
    'encoder_training': document.NOT_COVERED,
    'class_set': 'public',
    'settings': document.NOT_COVERED,
    'real_data_evaluation': document.NOT_COVERED,
  },
}

TEXTS: Mapping[str, str] = {
  'backbone': 'the final model and every checkpoint of the backbone',
  'clip_norms': 'the clip norms of all rounds',
  'mixture': 'the mixture and every set sampled from it',
  'backbone_updates': 'updates of the backbone in each round',
  'round_clip_norms': 'clip norm of each round',
  'settings': 'choice of settings (tuning)',
  'normalisation': 'normalisation of images',
  'population_and_identities': 'number of users and of identities',
  'training_metrics': 'training metrics (loss, cohort sizes)',
  'held_out_evaluation': 'evaluation on held-out identities',
  'embedding_sums': 'sums, counts and second moments of embeddings',
  'encoder_training': (
    'training of the encoder (bounded by the composition only)'
  ),
  'class_set': 'set of classes',
  'real_data_evaluation': 'evaluation on real held-out data',
}


def problems(certificate: document.Certificate) -> list[str]:
  """Returns where a certificate says something else."""
  kind, found = certificate.kind, []
  if certificate.released.protected != PROTECTED[kind]:
    found.append(
      f'released.protected must be {list(PROTECTED[kind])}, got'
      f' {list(certificate.released.protected)}.'
    )
  listed: dict[str, set[str]] = {}
  for access in certificate.data_accesses:
    listed.setdefault(access.what, set()).add(access.status)
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
  participation = certificate.sampling.participation
  if (participation == document.EVERYONE) != (kind == 'synthetic'):
    found.append(
      f'sampling.participation must be that of a {kind}, got {participation!r}.'
    )
  return found
