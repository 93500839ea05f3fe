"""A certificate as a document: 16 parts, each a frozen value.

Parts 1 to 7, 9 to 13 and 15 are facts. The accounting (8), the composition (14)
and the plain statement (16) follow from them; `accounting`, `against_ledger`
and `statement` say how, and building and verifying call the same code.

`dpemb certificate show --schema` prints their JSON Schema.
"""

import os
from typing import Annotated, Any, Literal, Self, TypeVar

import pydantic

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.certificate import noise

NOT_RUN = 'not run'
NOT_COVERED = 'not covered'
NOT_MEASURED = 'not measured'
EVERYONE = 'everyone'  # Sampler, and participation, of a synthetic set.

_Epsilon = Annotated[float, pydantic.Field(ge=0)] | None  # None: no guarantee
_Row = TypeVar('_Row')
# Each is computed anew by whoever verifies: a stranger's may not take for ever.
_Rows = Annotated[tuple[_Row, ...], pydantic.Field(max_length=32)]
_Size = Annotated[int, pydantic.Field(ge=2, le=2**53 - 1)]


class CertificateError(guarantee.PrivacyError):
  """A certificate that must not be made, or cannot be read."""


class Setting(documents.Value):
  """1: who is trusted: whoever runs the job, not who gets what is released."""

  model: Literal['central'] = 'central'


class Unit(documents.Value):
  """2: whose data are protected together, and up to how many examples."""

  unit: Literal['user'] = 'user'
  user_definition: str
  duplicate_ids: Literal['one user'] = 'one user'
  max_examples_per_user: documents.PositiveCount | None


class Adjacency(documents.Value):
  """3: the neighbouring data sets, and how far one user moves a sum."""

  relation: guarantee.Adjacency
  sensitivity_multiple: float
  shares_virtual_client: bool
  population_is_public: bool


class Released(documents.Value):
  """4: what leaves (`claims.PROTECTED`), and what engineers see unprotected."""

  protected: tuple[str, ...]
  seen_without_protection: tuple[str, ...]


class DataAccess(documents.Value):
  """5: one use of private data; `what` is of `claims.ACCESSES` or a text."""

  what: str
  status: Literal['covered', 'public', 'not covered']


class Sampling(documents.Value):
  """7: how users entered, and whether they kept to the plan's limits."""

  sampler: str
  population: _Size
  users_per_round: float
  probability: float
  virtual_clients: documents.Count
  # Measured on the run's cohorts; of a synthetic set nothing is to measure.
  participation: Literal[
    'within', 'outside', 'incomplete', 'not measured', 'everyone'
  ]
  min_separation: documents.Count | None = None  # Of a schedule.
  max_participations: documents.Count | None = None


class AtDelta(documents.Value):
  """Epsilon at a delta."""

  delta: float
  epsilon: _Epsilon


class AtGroup(documents.Value):
  """Epsilon, at the release's delta, of users who come or go together."""

  users: Annotated[int, pydantic.Field(ge=1, le=100)]
  epsilon: _Epsilon


class GdpBound(documents.Value):
  """mu of a Gaussian that bounds epsilon at every delta >= least_delta."""

  mu: float
  least_delta: float


class Method(documents.Value):
  """How events became numbers: the same method gives the same numbers.

  Attributes:
    library: Name and version of the accounting library.
    version: Of this product's own part.
    grid_points, group_grid_points: Of the loss distributions.
  """

  library: str
  version: documents.PositiveCount
  grid_points: documents.PositiveCount
  group_grid_points: documents.PositiveCount


class Accounting(documents.Value):
  """8: what the draws cost, of this release alone."""

  method: Method
  accountant: str
  epsilon: _Epsilon
  delta: Annotated[float, pydantic.Field(ge=0)]
  cross_check_epsilon: _Epsilon
  discretisation: float | None
  epsilon_at_deltas: _Rows[AtDelta]
  profile: _Rows[AtDelta]
  groups: _Rows[AtGroup]
  mu_gdp: float | None  # Of the whole trade-off curve; None: it has none.
  mu_gdp_bound: GdpBound | None
  zcdp_rho: float | None
  unamplified_epsilon: _Epsilon
  unamplified_mu_gdp: float | None
  unamplified_zcdp_rho: float | None
  event: dict[str, Any]
  notes: tuple[str, ...]  # Of the accountant, on its answer.
  warnings: tuple[str, ...]


class Tuning(documents.Value):
  """9: runs that chose the settings; those that the population paid for."""

  private_runs: str
  cost: str
  runs_in_ledger: documents.Count


class PublicData(documents.Value):
  """10: what was learned from public data."""

  pretraining: str
  overlap_check: str


class Randomness(documents.Value):
  """11: where the randomness came from, and how the noise is represented."""

  source: str
  numerics: str
  seed: Literal['none fixed, none stored'] = 'none fixed, none stored'


class AuditResult(documents.Value):
  """One empirical audit; further figures of `Audit.to_json` are kept."""

  model_config = pydantic.ConfigDict(extra='allow')

  method: str
  mode: str | None = None
  canaries: documents.Count | None = None
  confidence: float
  delta: float
  lower_bound: float | None
  verdict: str


class Audit(documents.Value):
  """12: what attacks proved, from below."""

  status: Literal['run', 'not run']
  results: Annotated[tuple[AuditResult, ...], pydantic.Field(max_length=64)]


class Utility(documents.Value):
  """13: figures on held-out data; classes that were dropped."""

  status: Literal['measured', 'not run']
  measures: dict[str, Any]
  dropped_classes: tuple[str, ...] | None  # None: a model drops none.


class Composition(documents.Value):
  """14: all draws of the population up to provenance.ledger_entries."""

  population: str
  epsilon: _Epsilon
  delta: float
  releases: tuple[str, ...]
  budget_epsilon: float | None
  budget_delta: float | None
  remaining_epsilon: float | None


class Provenance(documents.Value):
  """15: from what it was made, by digests; '' where unknown."""

  plan_digest: documents.MaybeSha256
  config_digest: documents.MaybeSha256
  code_revision: str
  data_digest: documents.MaybeSha256
  lock_digest: documents.MaybeSha256
  artifacts: dict[str, documents.MaybeSha256]
  artifact_digest: documents.MaybeSha256
  ledger_entries: documents.Count
  ledger_digest: documents.MaybeSha256


class Statement(documents.Value):
  """16: the facts in plain words, as a version of the wording has them.

  Who shows a certificate shows `statement.of` its facts, not what is here.
  """

  wording: documents.PositiveCount
  text: str = ''
  trust: str = ''
  strength: str = ''
  groups: str = ''
  assumptions: tuple[str, ...] = ()
  void_if: tuple[str, ...] = ()


class Signature(documents.Value):
  """Who vouches for the digest."""

  algorithm: Literal['ed25519'] = 'ed25519'
  public_key: documents.Sha256
  value: Annotated[str, pydantic.Field(pattern='^[0-9a-f]{128}$')]


class Certificate(documents.Document):
  """What was promised about the users of one released artefact."""

  remedy = 'it must be made anew by this release'

  schema_name: Literal['dpemb.certificate/4'] = documents.schema(
    'dpemb.certificate/4'
  )
  kind: Literal['model', 'synthetic']
  run: str
  release: str
  created_at: str
  simulation: bool
  setting: Setting
  unit: Unit
  adjacency: Adjacency
  released: Released
  data_accesses: tuple[DataAccess, ...]
  mechanism: noise.Mechanism
  sampling: Sampling
  accounting: Accounting
  tuning: Tuning
  public_data: PublicData
  randomness: Randomness
  audit: Audit
  utility: Utility
  composition: Composition
  provenance: Provenance
  statement: Statement
  # Of all but itself and the signature, which is of the digest.
  sealed_digest: documents.MaybeSha256 = pydantic.Field(
    default='', alias='digest'
  )
  signature: Signature | None = None

  @pydantic.model_validator(mode='after')
  def _mechanism_is_of_the_kind(self) -> Self:
    queries = isinstance(self.mechanism, noise.QueriesMechanism)
    if queries != (self.kind == 'synthetic'):
      raise ValueError(
        f'mechanism.kind must be that of a {self.kind}, got'
        f' {self.mechanism.kind!r}.'
      )
    return self

  @property
  def digest(self) -> str:
    """SHA-256 (hex) of all but the stated digest and the signature."""
    content = self.to_json()
    del content['digest'], content['signature']
    return documents.digest_of(content)

  def sealed(self) -> Self:
    """Returns the certificate with its own digest set anew."""
    return self.model_copy(update={'sealed_digest': self.digest})


def read(path: str | os.PathLike[str]) -> Certificate:
  """Returns the certificate in a file; CertificateError if there is none."""
  try:
    return Certificate.read(path)
  except storage.ArtifactError as error:
    raise CertificateError(str(error)) from error
