"""A stage is done from the inputs of its stamp, and from no others."""

import pytest

from launch.run import stamps


def test_a_stamp_is_read_back_for_the_same_inputs_only(tmp_path):
  stamp = stamps.stamp_of(tmp_path / 'stage', 'page', 'store')
  assert stamp.read() is None
  assert stamps.read_any(stamp.directory) is None
  stamp.write({'rounds': 3})
  assert stamp.read() == {'rounds': 3, 'inputs': stamp.inputs}
  assert stamps.stamp_of(stamp.directory, 'page', 'store').read() is not None
  assert stamps.read_any(stamp.directory) == stamp.read()


@pytest.mark.parametrize(
  'inputs', [('page',), ('pages', 'tore'), ('store', 'page'), ()]
)
def test_other_inputs_are_another_stamp(tmp_path, inputs):
  stamps.stamp_of(tmp_path, 'page', 'store').write({})
  assert stamps.stamp_of(tmp_path, *inputs).read() is None
