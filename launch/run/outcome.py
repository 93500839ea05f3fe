"""What a step made, in a line or two: figures, epsilon so far, where it lies."""

import pathlib
from typing import Any

from launch.run import opened
from launch.run import stamps
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy import guarantee

_CERTIFICATE = 'certificate.json'


def of(step: str, run: opened.OpenRun) -> list[str]:
  """Returns what a finished step made; nothing of a check.

  Args:
    step: Name of the step's function.
    run: The run.
  """
  paths = run.paths
  match step:
    case 'data':
      sizes = ', '.join(
        f'{store.num_users} {name}'
        for name, store in (
          ('private', run.private),
          ('validation', run.validation),
          ('test', run.test),
        )
      )
      return [f'users: {sizes}; {paths.data}']
    case 'pretrain':
      found = _stamp(paths.pretrained)
      how = f'{found["steps"]} steps' if found['enabled'] else 'none: disabled'
      return [f'{how}; {paths.pretrained / "weights.npz"}']
    case 'train':
      return _train(run, _stamp(paths.training))
    case 'evaluate':
      return _evaluate(run, _stamp(paths.evaluation))
    case 'export':
      found = _stamp(paths.export)
      version = paths.export / str(found['version'])
      return [
        f'version {found["version"]}, least cosine with the live model'
        f' {found["min_cosine"]:.6f}; {version}',
        _certified(version),
      ]
    case 'serve_check':
      found = _stamp(paths.serving)
      return [
        f'{found["lookups"]} look-ups, {found["agreement_with_exact"]:.3f} agree'
        f' with exact search; index {paths.index / "test"}'
      ]
    case 'synthesize':
      found = _stamp(paths.synthetic_stage)
      return [
        f'{found["examples"]} embeddings of {found["classes"]} classes;'
        f' {paths.synthetic}',
        _certified(paths.synthetic),
      ]
  return []


def _train(run: opened.OpenRun, found: dict[str, Any]) -> list[str]:
  plan = run.plan
  rounds = plan.rounds if plan.is_charged_at_start else found['rounds']
  proved = plan.guarantee(rounds, replays=found['replayed_rounds'])
  again = found['replayed_rounds']
  return [
    f'{found["rounds"]} rounds{f" and {again} drawn again" if again else ""} in'
    f' {found["seconds"]:.0f} s; {run.paths.training / "weights.npz"}',
    f'epsilon {guarantee.epsilon_text(proved.epsilon)} at delta'
    f' {plan.delta:.2g} so far{_simulation(run)}',
  ]


def _evaluate(run: opened.OpenRun, found: dict[str, Any]) -> list[str]:
  trained = found['trained']
  figures = [
    f'recall@FAR {far} {_interval(figure)}'
    for far, figure in trained['recall_at_far'].items()
  ]
  return [
    f'recall@1 {_interval(trained["recall_at_1"])} on'
    f' {trained["identities"]} held-out identities;'
    f' {run.paths.evaluation / "stage.json"}',
    ', '.join(figures),
  ]


def _certified(folder: pathlib.Path) -> str:
  """Returns what the certificate in a folder says that was spent."""
  content = storage.read_json(folder / _CERTIFICATE)
  own, all_of_it = content['accounting'], content['composition']
  return (
    f'epsilon {_epsilon(own["epsilon"])} of this release,'
    f' {_epsilon(all_of_it["epsilon"])} so far of population'
    f' {all_of_it["population"]!r}; {folder / _CERTIFICATE}'
  )


def _epsilon(value: float | None) -> str:
  return guarantee.epsilon_text(guarantee.epsilon_from_json(value))


def _interval(figure: dict[str, float]) -> str:
  return f'{figure["value"]:.3f} [{figure["low"]:.3f}, {figure["high"]:.3f}]'


def _simulation(run: opened.OpenRun) -> str:
  if run.config.privacy.simulation:
    return ' (a simulation: it protects nobody)'
  return ''


def _stamp(folder: pathlib.Path) -> dict[str, Any]:
  found = stamps.read_any(folder)
  if found is None:
    raise stamps.StageError(f'{str(folder)!r} must hold a finished step.')
  return found
