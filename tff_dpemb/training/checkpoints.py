"""Round states on disk: written atomically, the newest good one read back.

A checkpoint holds the raw server state (weights, clip norm, momentum). Weights
and clip norm have been noised by the aggregator, or are public, and no random
state is kept. With correlated noise the state also holds the buffers that the
rounds to come need: parts of the noise of finished rounds, which a reader could
subtract. So the directory is its owner's alone (mode 0700, files 0600),
whatever the mechanism, and the last state of a run is kept without buffers.
"""

import pathlib
import re
from typing import Any

import numpy as np
import tensorflow as tf

from tff_dpemb.artifacts import storage

_NAME = re.compile(r'^round-(\d{6})\.npz$')


def save(
  directory: pathlib.Path, number: int, state: Any, *, keep: int
) -> None:
  """Writes the state after `number` rounds and drops all but `keep` files.

  Raises:
    artifacts.ArtifactError: The disk refused.
  """
  _make_private(directory)
  leaves = tf.nest.flatten(state)
  arrays = {f'{index:04d}': _encode(leaf) for index, leaf in enumerate(leaves)}
  path = directory / f'round-{number:06d}.npz'
  storage.atomic_write_npz(path, arrays, is_private=True)
  for old in numbers(directory)[:-keep]:
    (directory / f'round-{old:06d}.npz').unlink(missing_ok=True)


def load_latest(
  directory: pathlib.Path, template: Any
) -> tuple[int, Any] | None:
  """Returns (rounds done, state) of the newest readable checkpoint, or None.

  Args:
    directory: Where `save` wrote.
    template: A state of the same process, for the structure.

  Raises:
    artifacts.ArtifactError: Checkpoints exist but none fits `template`.
  """
  found = numbers(directory)
  problem = None
  for number in reversed(found):
    try:
      arrays = storage.read_npz(directory / f'round-{number:06d}.npz')
      return number, _restore(arrays, template)
    except (storage.ArtifactError, ValueError) as error:
      problem = error
  if problem is not None:
    raise storage.ArtifactError(
      f'no checkpoint in {str(directory)!r} can be read ({problem}); remove the'
      ' directory to start the run again (its noise stays charged).'
    )
  return None


def numbers(directory: pathlib.Path) -> list[int]:
  """Returns the rounds that have a checkpoint, in order."""
  if not directory.is_dir():
    return []
  matches = (_NAME.match(path.name) for path in directory.iterdir())
  return sorted(int(match.group(1)) for match in matches if match)


def _make_private(directory: pathlib.Path) -> None:
  try:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)  # One made by an earlier version, or another umask.
  except OSError as error:
    raise storage.ArtifactError(
      f'{str(directory)!r} must be a directory of this user'
      f' ({error.strerror}); choose another one for the runs.'
    ) from error


def _encode(leaf: Any) -> np.ndarray:
  array = np.asarray(leaf)
  if array.dtype.kind in 'OUS':  # Strings of the TFF state: names of events.
    data = leaf if isinstance(leaf, bytes) else str(leaf).encode()
    return np.frombuffer(b'\x01' + data, np.uint8)
  return array


def _restore(arrays: dict[str, np.ndarray], template: Any) -> Any:
  leaves = tf.nest.flatten(template)
  if len(leaves) != len(arrays):
    raise ValueError(f'it has {len(arrays)} values, {len(leaves)} are needed')
  restored: list[Any] = []
  for array, leaf in zip(arrays.values(), leaves, strict=True):
    reference = np.asarray(leaf)
    if reference.dtype.kind in 'OUS':
      data = array.tobytes()[1:]
      restored.append(data if isinstance(leaf, bytes) else data.decode())
      continue
    if array.shape != reference.shape or array.dtype != reference.dtype:
      raise ValueError(
        f'it has a {array.dtype}{array.shape} where'
        f' {reference.dtype}{reference.shape} is needed'
      )
    restored.append(array)
  return tf.nest.pack_sequence_as(template, restored)
