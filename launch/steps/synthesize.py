"""Private synthetic embeddings, certified, and how good they are."""

import contextlib
import dataclasses
import pathlib
from typing import Any

from launch.pages import certificate_page
from launch.run import opened
from launch.run import progress
from launch.run import release
from launch.run import revision
from launch.run import stamps
from launch.steps import data
from tff_dpemb.artifacts import storage
from tff_dpemb.evaluation import classification
from tff_dpemb.export import registry
from tff_dpemb.pipelines import assessment
from tff_dpemb.pipelines import publish
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.certificate import against_ledger
from tff_dpemb.privacy.certificate import build
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import facts
from tff_dpemb.privacy.ledger import leases as leases_lib


def synthesize(run: opened.OpenRun) -> None:
  """Publishes private synthetic embeddings, and says how good they are.

  What can be known before the charge is refused before it.
  """
  exported = registry.open_export(run.paths.export)
  stamp = stamps.stamp_of(
    run.paths.synthetic_stage,
    exported.digest,
    run.private.digest,
    run.paths.config_digest('privacy', 'synthesis'),
  )
  if stamp.read() is not None:
    return
  data.check_population(run)
  _ = run.public
  audits = release.audits(run, 'synthetic')
  delta = _checked_delta(run)
  with contextlib.ExitStack() as stack:
    stack.enter_context(progress.stage('synthesis: private mixture, sampled'))
    # Hours may have passed since its chain was verified for training.
    against_ledger.refuse_damaged(run.ledger)
    slot = run.config.synthesis.release
    lease = run.ledger.acquire_lease(run.config.name, slot)
    stack.callback(run.ledger.release_lease, lease)
    synthesis = _Synthesis(run, exported, lease, delta, audits)
    result = synthesis.make()
    # Un-noised figures of private data: for the operator's eyes.
    storage.atomic_write_json(
      synthesis.restricted / 'comparison.json',
      synthesis.assess(result).to_json(),
    )
    certified = document.read(run.paths.synthetic / publish.CERTIFICATE)
    stamp.write(
      {
        'examples': result.examples,
        'epsilon': certified.accounting.epsilon,
        'delta': result.delta,
        'classes': len(result.classes),
      }
    )


def _checked_delta(run: opened.OpenRun) -> float:
  """Returns the delta of the synthetic set; refuses what cannot be promised."""
  plan, delta = run.plan, run.config.synthesis.delta
  if delta is None:
    delta = plan.delta
  if not 0 < delta < 1 / run.private.num_users:
    raise stamps.StageError(
      f'synthesis.delta must be in (0, 1 / {run.private.num_users} users), got'
      f' {delta}; nothing was charged.'
    )
  if plan.adjacency is not guarantee.Adjacency.ADD_OR_REMOVE_ONE:
    raise stamps.StageError(
      'privacy.adjacency must be add-or-remove-one for a synthetic set, whose'
      f' noise is made for that relation, got {plan.adjacency.value} (of sampler'
      f' {run.config.privacy.sampler!r}); nothing was charged.'
    )
  return delta


@dataclasses.dataclass(frozen=True)
class _Synthesis:
  """What one synthetic set is made from, charged to and certified with."""

  run: opened.OpenRun
  exported: registry.Export
  lease: leases_lib.Lease
  delta: float
  audits: list[dict[str, Any]]

  @property
  def name(self) -> str:
    """The name that its noise is charged under."""
    return f'{self.run.config.name}/{self.run.config.synthesis.release}'

  @property
  def restricted(self) -> pathlib.Path:
    """Where its un-noised figures go."""
    folder = self.run.paths.make_restricted()
    return folder / self.run.config.synthesis.release

  @property
  def request(self) -> publish.Request:
    """What the pipelines are asked for."""
    run = self.run
    return publish.Request(
      private_store=run.paths.store('private'),
      public_store=run.paths.store('public'),
      export=self.exported.path,
      output=run.paths.synthetic,
      restricted=self.restricted,
      config=run.config.synthesis,
      delta=self.delta,
      charge=self.charge,
      charged=lambda: run.draws_of(self.name),
      release=self.name,
      certify=self.certify,
    )

  def make(self) -> publish.SyntheticRelease:
    """Makes the set; it is visible with its certificate or not at all."""
    assessment.check_held_out(self.request, self.run.paths.store('test'))
    return publish.run(self.request)

  def charge(self, event: Any, release_id: str) -> None:
    """Makes the entry of the set's noise durable, before it is drawn."""
    run = self.run
    run.paths.stop_if_requested()  # Not after it is paid for.
    run.ledger.charge(
      population=run.config.privacy.population,
      release=self.name,
      run=run.config.name,
      event=event,
      adjacency=run.plan.adjacency,
      config_digest=run.config.digest(),
      code_revision=revision.code_revision(),
      details={
        'part': release_id,
        'data_digest': run.private.digest,
        against_ledger.SIMULATION: run.config.privacy.simulation,
        against_ledger.DELTA: self.delta,
        against_ledger.POPULATION_SIZE: run.private.num_users,
      },
      lease=self.lease,
    )

  def assess(
    self, result: publish.SyntheticRelease
  ) -> classification.Comparison:
    """Returns how a classifier of the set does on real embeddings."""
    return assessment.assess(
      result,
      self.request,
      held_out_store=self.run.paths.store('test'),
      confidence=self.run.config.evaluation.confidence,
    )

  def certify(
    self, result: publish.SyntheticRelease, hashes: dict[str, str]
  ) -> dict[str, bytes]:
    """Certificate and record of the release, before the set is visible."""
    run = self.run
    arguments = result.certificate_arguments()
    queries = [document.Query(**query) for query in arguments.pop('queries')]
    certified = build.for_synthesis(
      charged=release.charged(run, self.name),
      context=facts.Context(
        simulation=run.config.privacy.simulation,
        seen_without_protection=assessment.SEEN_WITHOUT_PROTECTION,
        data_accesses=result.data_accesses(),
        utility={'accuracy': self.assess(result).to_json()['accuracy']},
        audits=self.audits,
      ),
      provenance=release.provenance(
        run,
        private_digest=run.private.digest,
        artifacts=hashes,
        plan_digest=result.manifest.plan_digest,
      ),
      population_size=run.private.num_users,
      delta=self.delta,
      encoder=f'export {self.exported.digest}, trained on the same users',
      queries=queries,
      **arguments,
    )
    release.record(run, certified, hashes[publish.EMBEDDINGS])
    return {
      publish.CERTIFICATE: certified.to_bytes(),
      release.PAGE: certificate_page.to_html(certified).encode(),
    }
