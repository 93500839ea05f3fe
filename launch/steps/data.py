"""The first step: the data set is there, and may be charged as the page says."""

from launch.run import opened
from launch.run import progress
from launch.run import stamps
from tff_dpemb.data.sources.glyphs import source as glyphs


def data(run: opened.OpenRun) -> None:
  """Makes the bundled glyph data set unless the page names another one."""
  if run.config.data.directory:
    if run.config.pretraining.enabled:
      _ = run.public
    _ = run.private, run.validation, run.test
    return
  stamp = stamps.Stamp(
    run.paths.root / 'stages' / 'data', run.config.digest('data')
  )
  if stamp.read() is not None and run.paths.data.exists():
    return
  with progress.stage('data: glyphs from the bundle'):
    glyphs.build_glyphs(run.paths.data, config=run.config.data, replace=True)
    stamp.write({})


def check_population(run: opened.OpenRun) -> None:
  """Refuses data that another population of the ledger pays for.

  A charge refuses them too, but only after what comes before it.

  Raises:
    LedgerError: The population is named in the ledger.
  """
  digest = run.private.digest
  run.unverified_ledger.check_data_set(run.config.privacy.population, digest)


def check_plan(run: opened.OpenRun) -> None:
  """Refuses a page whose privacy breaks a rule, before hours of other work.

  Raises:
    PlanError: As of `plan_from_config`.
  """
  _ = run.plan
