"""Engines as processes: they take turns, and one that fails is left out."""

import pytest

from benchmarks.peers import race
from benchmarks.peers import work as work_lib


def test_engines_take_turns_and_a_broken_one_is_left_out():
  engines = (
    race.Engine('raw', 'raw', '1'),
    race.Engine('missing', 'no_such_module'),
  )
  times, left_out = race.run(engines, 'tiny', rounds=2)
  assert list(times) == ['raw']
  assert len(times['raw'].seconds) == 2
  assert all(seconds > 0 for seconds in times['raw'].seconds)
  assert all(moved > 0.1 for moved in times['raw'].moved)
  (reason,) = left_out
  assert 'missing' in reason
  assert 'no_such_module' in reason


@pytest.mark.parametrize('name', work_lib.WORKS)
def test_every_process_makes_the_same_data(name):
  work = work_lib.WORKS[name]
  images, labels = work.images(), work.labels()
  assert images.shape == (work.clients, work.examples, *work.image_shape)
  assert labels.shape == (work.clients, work.examples)
  assert labels.max() == work.classes - 1
  assert (images == work.images()).all()
  assert work_lib.normalise(images).min() == -1.0


def test_distance_is_the_norm_over_all_weights():
  """3 and 4 apart: 5."""
  before, after = [[0.0, 1.0], [2.0]], [[3.0, 1.0], [6.0]]
  assert work_lib.distance(before, after) == 5.0


def test_a_gate_gives_one_round_for_each_request():
  gate = work_lib.Gate()
  norms = iter([0.0, 1.5, 2.5])

  def loop():
    for moved in norms:
      gate.wait(moved)
    gate.wait(0.0)

  gate.start(loop)
  assert [gate.do_round(), gate.do_round()] == [1.5, 2.5]
