"""Charged before noise, drawn once, charged again where a draw may be lost."""

import numpy as np
import pytest
from dp_accounting import pld

from tff_dpemb.artifacts import storage
from tff_dpemb.clustering import errors
from tff_dpemb.clustering import noise
from tff_dpemb.clustering import plan as plan_lib
from tff_dpemb.pipelines import files
from tff_dpemb.pipelines import release as release_lib

PLAN = plan_lib.build((0, 1), epsilon=4.0, delta=1e-5, projection_dim=2)


class Spent(RuntimeError):
  """The budget is spent."""


class Book:
  """Remembers charges; refuses after `limit` of them."""

  def __init__(self, limit=9):
    self.entries = []
    self._limit = limit

  def __call__(self, event, name):
    if len(self.entries) >= self._limit:
      raise Spent
    self.entries.append((event, name))


def open_release(tmp_path, book, source=None, charged=None, **inputs):
  return release_lib.open_release(
    'r1',
    tmp_path / 'release',
    plan=PLAN,
    inputs={'data': 'a', **inputs},
    charge=book,
    source=source or noise.SeededGaussian(0),
    charged=charged,
  )


def epsilon(event):
  return pld.PLDAccountant().compose(event).get_epsilon(1e-5)


def sums(step):
  return {
    name: np.zeros((3, 3) if name != 'scatter' else (1, 3, 3), np.int64)
    for name in step.multipliers
  }


def draw_all(release):
  return [release.draw(i, sums(step)) for i, step in enumerate(PLAN.passes)]


def test_whole_plan_is_charged_once_before_the_first_draw(tmp_path):
  book = Book()
  release = open_release(tmp_path, book)
  draw_all(release)
  assert [name for _, name in book.entries] == ['r1']
  assert epsilon(book.entries[0][0]) == pytest.approx(epsilon(PLAN.event()))
  assert epsilon(release.event()) <= 4.0


def test_noise_is_read_back_not_drawn_again(tmp_path):
  book = Book()
  first = draw_all(open_release(tmp_path, book))
  again = draw_all(open_release(tmp_path, book, source=noise.SeededGaussian(0)))
  for one, two in zip(first, again):
    for name in one:
      np.testing.assert_array_equal(one[name], two[name])
  assert len(book.entries) == 1


def test_refused_charge_draws_nothing(tmp_path):
  release = open_release(tmp_path, Book(limit=0))
  with pytest.raises(Spent):
    release.draw(0, sums(PLAN.passes[0]))
  assert not release.noisy_path(0).exists()
  assert release.charges() == []


def test_a_ledger_that_lacks_charges_is_refused(tmp_path):
  """Another ledger, or an older copy: no noise is drawn on its account."""
  book = Book()
  open_release(tmp_path, book, charged=0).draw(0, sums(PLAN.passes[0]))
  with pytest.raises(errors.ClusteringError, match='must hold the 1 charges'):
    open_release(tmp_path, book, charged=0)
  # A crash between the two leaves the ledger one ahead.
  for charged in (1, 2):
    open_release(tmp_path, book, charged=charged)


def test_lost_draw_is_charged_again(tmp_path, monkeypatch):
  book = Book()
  release = open_release(tmp_path, book)
  release.draw(0, sums(PLAN.passes[0]))

  def crash(path, content):
    raise storage.ArtifactError('disk full')

  with monkeypatch.context() as patch:
    patch.setattr(files, 'write_arrays', crash)
    with pytest.raises(storage.ArtifactError):
      release.draw(1, sums(PLAN.passes[1]))
  resumed = open_release(tmp_path, book)
  draw_all(resumed)
  assert resumed.charges() == ['plan', 'centres_1']
  total = resumed.event()
  assert epsilon(total) > epsilon(PLAN.event())
  # What was charged and what is certified are the same Gaussians.
  spent = sum(
    part.noise_multiplier**-2
    for event, _ in book.entries
    for part in getattr(event, 'events', [event])
  )
  assert sum(e.noise_multiplier**-2 for e in total.events) == pytest.approx(
    spent
  )


def test_pass_not_begun_is_not_charged_again(tmp_path):
  book = Book()
  open_release(tmp_path, book).draw(0, sums(PLAN.passes[0]))
  draw_all(open_release(tmp_path, book))
  assert len(book.entries) == 1


def test_id_is_bound_to_its_inputs(tmp_path):
  open_release(tmp_path, Book())
  with pytest.raises(
    errors.ClusteringError, match='another `synthesis.release'
  ):
    open_release(tmp_path, Book(), data='b')
