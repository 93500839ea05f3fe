"""The noise of one release: charged first, drawn once, read back ever after.

```
<directory>/release.json      fingerprint of the plan and of all its inputs
<directory>/charges.json      what was charged, in order
<directory>/drawing-<i>.json  pass i is about to draw
<directory>/noisy-<i>.npz     noisy sums of pass i (protected)
```
The first draw of a release charges the whole plan. A pass whose draw was
started but whose result is not on disk may have drawn noise that was lost: it
is charged again before it draws again. So a crash over-counts, never under.

That holds only if what was written is still there after a crash. The directory
is therefore local (or mounted), and every file of it is synced to disk.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

from tff_dpemb.artifacts import storage
from tff_dpemb.clustering import errors
from tff_dpemb.clustering import noise
from tff_dpemb.clustering import plan as plan_lib
from tff_dpemb.clustering import queries
from tff_dpemb.pipelines import files

Charge = Callable[[Any, str], None]


@dataclasses.dataclass(frozen=True)
class Release:
  """One release id in its directory; make with `open_release`."""

  name: str
  directory: pathlib.Path
  plan: plan_lib.ClusteringPlan
  charge: Charge
  source: noise.NoiseSource

  def draw(self, index: int, sums: queries.Sums) -> queries.Sums:
    """Returns the noisy sums of pass `index`: drawn now, or read back.

    Raises:
      Whatever `charge` raises, such as a spent budget: nothing is drawn then.
    """
    path = self.noisy_path(index)
    if path.exists():
      return files.read_arrays(path, remedy='start a new release')
    step = self.plan.passes[index]
    marker = self.directory / f'drawing-{index}.json'
    if not self.charges():
      self._pay(plan_lib.WHOLE_PLAN, self.plan.event())
    elif marker.exists():
      self._pay(step.name, step.event())
    storage.atomic_write_json(marker, {'pass': step.name})
    noisy = noise.add_noise(sums, step.multipliers, source=self.source)
    files.write_arrays(path, noisy)
    return noisy

  def noisy_path(self, index: int) -> pathlib.Path:
    """Returns where the noisy sums of a pass are."""
    return self.directory / f'noisy-{index}.npz'

  def charges(self) -> list[str]:
    """Returns what was charged so far: 'plan', then names of passes."""
    path = self.directory / 'charges.json'
    return storage.read_json(path) if path.exists() else []

  def event(self):
    """Returns the composed event of all charges, repeated passes included."""
    return self.plan.event_of(self.charges())

  def _pay(self, name: str, event) -> None:
    self.charge(event, self.name)  # Durable when it returns.
    storage.atomic_write_json(
      self.directory / 'charges.json', [*self.charges(), name]
    )


def open_release(
  name: str,
  directory: str | pathlib.Path,
  *,
  plan: plan_lib.ClusteringPlan,
  inputs: dict[str, Any],
  charge: Charge,
  source: noise.NoiseSource,
  charged: int | None = None,
) -> Release:
  """Returns a new release, or the one that an equal call has started.

  Args:
    name: Release id.
    directory: Of this release alone.
    plan: What is drawn.
    inputs: Digests of all that the noisy sums depend on.
    charge: Makes the entry of a draw durable, or raises.
    source: Of the noise.
    charged: How many entries the ledger holds for this release, if known.

  Raises:
    ClusteringError: The id was used with other inputs: noise drawn for one
      set must not be read back for another. Or the ledger holds fewer entries
      than were made: it is another one, or was put back.
  """
  directory = pathlib.Path(directory)
  content = {
    'release': name,
    'plan_digest': plan.digest(),
    'inputs': inputs,
    'certifiable': source.certifiable,
  }
  path = directory / 'release.json'
  if not path.exists():
    storage.atomic_write_json(path, content)
  elif storage.read_json(path) != content:
    raise errors.ClusteringError(
      f'release {name!r} was started from other data or settings; give the'
      ' new set another `synthesis.release` (this one stays charged).'
    )
  release = Release(
    name=name, directory=directory, plan=plan, charge=charge, source=source
  )
  made = len(release.charges())
  if charged is not None and charged < made:
    raise errors.ClusteringError(
      f'the ledger must hold the {made} charges that {str(directory)!r} says'
      f' were made for release {name!r}, it holds {charged}; give the ledger of'
      ' that release (privacy.ledger), or another `synthesis.release`.'
    )
  return release
