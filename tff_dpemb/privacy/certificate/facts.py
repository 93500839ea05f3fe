"""What a certificate states that no accounting can derive.

Three small values, the same for a trained model and for a synthetic set: who
paid, what is known about the data and their use, and from what all was made.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.ledger import state as ledger_state


@dataclasses.dataclass(frozen=True)
class Charged:
  """Whose draws a certificate is about.

  Attributes:
    ledger: Where they were charged.
    population: Name of the population that paid.
    run: Run name in the ledger.
    release: Release name in the ledger, for example 'quickstart/model'.
  """

  ledger: ledger_lib.Ledger
  population: str
  run: str
  release: str

  def draws(self) -> list[ledger_state.Entry]:
    """Returns the draws of the release, oldest first."""
    return self.ledger.entries(
      population=self.population,
      run=self.run,
      release=self.release,
      kind='draw',
    )


@dataclasses.dataclass(frozen=True)
class Context:
  """What is known about the users' data and what else was done with them.

  Attributes:
    simulation: Whether the noise stands for that of a larger population; then
      the certificate says so, and `serve` refuses it unless asked by name.
    user_definition: What a user is.
    max_examples_per_user: Cap per user and round; None if all count.
    seen_without_protection: What engineers see of the private data without
      noise (names of metrics, not values).
    data_accesses: {what: 'public' or 'not covered'}; adds to the list of
      `claims`.
    tuning: How many runs on private data chose the settings, and how.
    tuning_cost: What these runs cost.
    overlap_check: How private users were looked for in public data.
    utility: Figures on held-out data, JSON values.
    audits: Results of empirical audits, JSON values as `Audit.to_json`.
  """

  simulation: bool
  user_definition: str = 'one identity of the private store is one user'
  max_examples_per_user: int | None = None
  seen_without_protection: Sequence[str] = ()
  data_accesses: Mapping[str, str] = dataclasses.field(default_factory=dict)
  tuning: str = document.NOT_COVERED
  tuning_cost: str = document.NOT_COVERED
  overlap_check: str = document.NOT_RUN
  utility: Mapping[str, Any] | None = None
  audits: Sequence[Mapping[str, Any]] = ()


@dataclasses.dataclass(frozen=True)
class Provenance:
  """From what a release was made, by digests; empty: unknown.

  Attributes:
    artifacts: {relative path: SHA-256 of the file} beside the certificate.
    artifact_digest: Digest over `{path: SHA-256}` of the files that the
      `manifest.json` beside the certificate lists (`digest_of_files`).
    plan_digest: Of the plan of a synthetic set; a model's follows from its
      plan.
    config_digest: Of the run page.
    code_revision: Version of the code.
    data_digest: Of the manifest of the private store.
    lock_digest: Of the lock file.
  """

  artifacts: Mapping[str, str] = dataclasses.field(default_factory=dict)
  artifact_digest: str = ''
  plan_digest: str = ''
  config_digest: str = ''
  code_revision: str = ''
  data_digest: str = ''
  lock_digest: str = ''
