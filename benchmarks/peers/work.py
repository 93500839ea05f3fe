"""The round that every engine does, and how it is asked to do it.

NumPy alone: this is imported in the environments of all engines. An engine is
a module with `main`, which calls `serve`: it prepares the round once, says
that it is ready, and then does one round for each line on its standard input.

The round: every client starts from the same weights, takes one epoch of
momentum SGD in batches over its own images with a softmax over `classes`, and
its update is clipped to an adaptive L2 norm; the sum gets Gaussian noise, and
the server takes a momentum step on the mean.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Work:
  """What a round computes; the numbers are those of no special data set."""

  model: str  # 'lenet' or 'mobilenet_v2'
  clients: int
  examples: int  # of each client
  image_shape: tuple[int, int, int]
  batch_size: int
  classes: int = 62
  embedding_dim: int = 128
  learning_rate: float = 0.02
  momentum: float = 0.9
  server_learning_rate: float = 0.5
  server_momentum: float = 0.9
  clip_norm: float = 0.5  # of the first round
  target_unclipped_quantile: float = 0.5
  clip_learning_rate: float = 0.2
  noise_multiplier: float = 0.5

  @property
  def count_stddev(self) -> float:
    """Of the noise on the number of unclipped updates."""
    return max(self.clients / 20, 2 * self.noise_multiplier)

  def images(self) -> np.ndarray:
    """Returns uint8 [clients, examples, H, W, C], the same in any process."""
    shape = (self.clients, self.examples, *self.image_shape)
    return np.random.default_rng(1).integers(0, 256, shape, np.uint8)

  def labels(self) -> np.ndarray:
    """Returns int32 [clients, examples]."""
    shape = (self.clients, self.examples)
    return np.random.default_rng(2).integers(0, self.classes, shape, np.int32)


WORKS = {
  'lenet': Work('lenet', 32, 64, (28, 28, 1), 32),
  # Small for tests: the same code in seconds.
  'tiny': Work('lenet', 3, 8, (8, 8, 1), 4, classes=5, embedding_dim=8),
  # The recipe of arXiv 2211.10844: few virtual clients of many users each.
  'recipe': Work('lenet', 2, 256, (28, 28, 1), 32, classes=32),
  'mobilenet_v2': Work('mobilenet_v2', 32, 8, (64, 64, 3), 8),
}


def normalise(images: np.ndarray) -> np.ndarray:
  """Returns uint8 images as float32 in [-1, 1]."""
  return images.astype(np.float32) / 127.5 - 1.0


def serve(
  prepare: Callable[
    [Work, argparse.Namespace, contextlib.ExitStack], Callable[[], float]
  ],
) -> None:
  """Runs an engine: one round for each line of standard input.

  What it prints is one JSON object a line: {'ready': true} first, then
  {'seconds': ..., 'moved': ...} after each round.

  Args:
    prepare: Returns the function that does a round and returns the L2 norm by
      which it moved the weights. What must be closed at the end it gives to
      the stack.
  """
  parser = argparse.ArgumentParser()
  parser.add_argument('--work', required=True, choices=list(WORKS))
  parser.add_argument('--variant', default='')
  options = parser.parse_args()
  # Libraries print; the protocol keeps a descriptor that they do not know.
  replies = os.fdopen(os.dup(1), 'w', buffering=1)
  os.dup2(2, 1)
  with contextlib.ExitStack() as stack:
    do_round = prepare(WORKS[options.work], options, stack)
    print(json.dumps({'ready': True}), file=replies)
    for _ in sys.stdin:
      start = time.perf_counter()
      moved = float(do_round())
      seconds = time.perf_counter() - start
      print(json.dumps({'seconds': seconds, 'moved': moved}), file=replies)


class Gate:
  """Lets an engine that owns its loop be asked for one round at a time.

  The loop runs in a thread of its own and calls `wait` before each round.
  """

  def __init__(self):
    self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
    self._moved: queue.SimpleQueue[float] = queue.SimpleQueue()
    self._started = False

  def wait(self, moved: float) -> None:
    """Ends a round, if one was asked for, and waits for the next."""
    if self._started:
      self._moved.put(moved)
    self._started = True
    self._asked.get()

  def do_round(self) -> float:
    """Returns by how much the weights moved in one round."""
    self._asked.put(None)
    return self._moved.get()

  def start(self, loop: Callable[[], object]) -> None:
    """Runs the loop in the background; the process ends if it does."""

    def run():
      try:
        loop()
      finally:
        traceback.print_exc()
        os._exit(1)

    threading.Thread(target=run, daemon=True).start()


def distance(before: list[np.ndarray], after: list[np.ndarray]) -> float:
  """Returns the L2 norm of a difference of weights."""
  squares = [
    np.sum(np.square(np.asarray(x, np.float64) - np.asarray(y, np.float64)))
    for x, y in zip(before, after, strict=True)
  ]
  return float(np.sqrt(sum(squares)))
