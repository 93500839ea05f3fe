"""A synthetic set is measured on real held-out images of its classes."""

import pathlib

import pytest

from tff_dpemb.evaluation import classification
from tff_dpemb.pipelines import assessment
from tff_dpemb.pipelines import publish


def test_synthetic_set_teaches_real_classes(call, stores):
  found = call()
  comparison = assessment.assess(
    found, call.request, held_out_store=stores / 'test'
  )
  assert comparison.accuracy_on_real.value > 0.9
  assert comparison.share_of_real >= 0.8
  assert comparison.chance < 0.5 and comparison.uniform_chance == 0.25
  assert comparison.examples == 61 * 4


def test_assessment_goes_by_name_before_anything_is_published(
  call, tmp_path, settings, write_store
):
  # The held-out store numbers its classes otherwise, and one class is no
  # longer declared.
  write_store(tmp_path / 'held-out', 60, seed=3, first_names=('a', 'b'))
  config = settings.model_copy(
    update={'class_names': ('class 3', 'class 0', 'class 2')}
  )
  found = []

  def certify(release, hashes):
    assert not pathlib.Path(release.path).exists()
    found.append(
      assessment.assess(
        release, call.request, held_out_store=tmp_path / 'held-out'
      )
    )
    return {publish.CERTIFICATE: b'{}'}

  call(config=config, certify=certify)
  (comparison,) = found
  assert comparison.accuracy.value > 0.8
  assert comparison.accuracy_on_real.value > 0.9
  assert comparison.uniform_chance == pytest.approx(1 / 3)
  assert 0 < comparison.examples < 61 * 4


def test_what_engineers_see_is_named():
  text = ' '.join(assessment.SEEN_WITHOUT_PROTECTION)
  for figure in classification.RESTRICTED:
    assert figure in text
  assert 'exact sums' in text and 'embeddings' in text


def test_held_out_images_without_the_classes_are_refused(
  call, tmp_path, settings, stores, write_store
):
  write_store(tmp_path / 'other', 5, seed=4, class_format='kind {}')
  call()
  assessment.check_held_out(call.request, stores / 'test')
  with pytest.raises(
    classification.EvaluationError, match='some of the declared classes'
  ):
    assessment.check_held_out(call.request, tmp_path / 'other')
