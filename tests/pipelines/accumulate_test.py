"""Beam's sums equal NumPy's on the whole array, bit for bit."""

import itertools
import pickle

import cloudpickle
import numpy as np
import pytest

from tff_dpemb.clustering import mixture as mixture_lib
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.clustering import queries
from tff_dpemb.pipelines import accumulate
from tff_dpemb.pipelines import embed
from tff_dpemb.pipelines import files

LABELS = (0, 2, 3)  # Class 1 is not declared.


@pytest.fixture
def job(stores, tmp_path, encoder):
  embedded = embed.embed(
    store=stores / 'private',
    export='model-1',
    label='category',
    directory=tmp_path / 'embeddings',
    open_export=encoder,
  )
  x, labels, users = embedded.read_all()
  projection = projection_lib.fit(x, 4)  # Any projection will do here.
  rows = tmp_path / 'rows.npz'
  accumulate.write_rows_of_user(embedded, classes=LABELS, path=rows)
  centres = np.random.default_rng(0).normal(size=(3, 2, 4)) * 0.2
  query = queries.Query(centres=centres, radius=0.6, scatter='per_class')
  expected = query.sums_of(
    projection.project(x), mixture_lib.class_indices(labels, LABELS), users
  )
  arguments = dict(
    projection=projection,
    classes=LABELS,
    rows_of_user=rows,
    path=tmp_path / 'sums.npz',
  )
  return embedded, query, arguments, expected


@pytest.mark.parametrize(
  'flags',
  [
    (),
    ('--direct_running_mode=multi_processing', '--direct_num_workers=2'),
  ],
)
def test_equals_numpy_on_the_whole_array(job, flags):
  embedded, query, arguments, expected = job
  sums = accumulate.accumulate(
    embedded, query, pipeline_options=flags, **arguments
  )
  assert sums.keys() == expected.keys()
  for name in expected:
    assert expected[name].any()
    np.testing.assert_array_equal(sums[name], expected[name])


def test_user_in_two_shards_weighs_as_one(job):
  embedded, _, arguments, _ = job
  parts = [
    {int(user) for user in embedded.read(i)[2]} for i in range(embedded.parts)
  ]
  assert 0 in parts[0] and 0 in parts[-1]
  rows = files.read_arrays(arguments['rows_of_user'])['rows']
  _, labels, users = embedded.read_all()
  np.testing.assert_array_equal(
    rows, np.bincount(users[np.isin(labels, LABELS)], minlength=300)
  )


def test_total_does_not_depend_on_order_or_grouping(job):
  _, query, _, expected = job
  twice = queries.add(expected, expected)
  thrice = accumulate.add_sums([expected] * 3, query)
  parts = [accumulate.add_sums([], query), expected, twice]
  for ordered in itertools.permutations(parts):
    total = accumulate.add_sums(ordered, query)
    for name in expected:
      np.testing.assert_array_equal(total[name], 3 * expected[name])
      np.testing.assert_array_equal(total[name], thrice[name])


def test_dofns_can_be_pickled(job):
  embedded, query, arguments, expected = job
  fn = accumulate.SumPart(
    embedded,
    projection=arguments['projection'],
    classes=LABELS,
    query=query,
    rows_of_user=str(arguments['rows_of_user']),
  )
  copy = pickle.loads(cloudpickle.dumps(fn))
  copy.setup()
  total = query.zero()
  for index in range(embedded.parts):
    total = queries.add(total, next(copy.process(index)))
  np.testing.assert_array_equal(total['sums'], expected['sums'])
