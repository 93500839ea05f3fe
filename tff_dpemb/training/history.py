"""What each round showed its operator, kept under `restricted/`."""

import contextlib
import dataclasses
import json
import os
import pathlib

from tff_dpemb.artifacts import storage
from tff_dpemb.training.execution import round_form


@dataclasses.dataclass(frozen=True)
class Times:
  """Where the seconds of a round went; parts that overlap add up to more.

  Attributes:
    read: Drawing and reading the cohort, during the round before.
    wait: What was left of that to wait for, before the round could start.
    executor: What the executor measured; None in another context of TFF.
  """

  read: float
  wait: float
  executor: round_form.RoundTimes | None


@dataclasses.dataclass(frozen=True)
class RoundReport:
  """What one finished round shows its operator. Partly private: see below.

  `clip_norm` and `update_norm` (of the noised mean) follow from released
  values. `loss` and `accuracy` (of the last local epoch's steps, each batch as
  its step saw it), `users`, `examples`, `zeroed` and `times` come from private
  data without noise and may only be kept under `restricted/`.
  """

  round: int
  attempt: int
  seconds: float
  clip_norm: float
  update_norm: float
  loss: float
  accuracy: float
  users: int
  examples: int
  zeroed: int
  times: Times


class History:
  """Restricted metrics as JSON lines; a line cut short by a crash is skipped."""

  def __init__(self, path: pathlib.Path):
    """Makes the directory of `path`, for its owner alone."""
    self._path = path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)

  def append(self, report: RoundReport) -> None:
    """Keeps a report.

    Raises:
      ArtifactError: The disk refused.
    """
    line = json.dumps(dataclasses.asdict(report))
    try:
      with open(
        self._path, 'a', encoding='utf-8', opener=_open_private
      ) as file:
        file.write('\n' + line)  # A torn line stays alone.
    except OSError as error:
      raise storage.ArtifactError(
        f'{str(self._path)!r} could not be written ({error.strerror}); free'
        ' space, then run the same command again to resume.'
      ) from error

  def seconds(self) -> float:
    """Returns the time of the rounds, the last report of each counted."""
    rounds: dict[int, float] = {}
    if self._path.exists():
      for line in self._path.read_text(encoding='utf-8').splitlines():
        with contextlib.suppress(ValueError):  # An empty or torn line.
          report = json.loads(line)
          rounds[report['round']] = report['seconds']
    return sum(rounds.values())


def _open_private(path: str, flags: int) -> int:
  return os.open(path, flags, 0o600)
