"""The page for own images: what was found, what is proposed and why."""

import os

import numpy as np
import PIL.Image
import pytest

from launch.pages import own_page
from launch.run import directory
from launch.run import opened
from tff_dpemb import config
from tff_dpemb.privacy.planning import settings as settings_lib


def _survey(**changes):
  values = {
    'identities': 300, 'images': 2400, 'fewest': 8, 'most': 8, 'height': 48,
    'width': 60, 'is_colour': True,
  }  # fmt: skip
  return own_page.Survey(**{**values, **changes})


def make_images(root, *, identities=12, images=3, size=(40, 30), mode='RGB'):
  rng = np.random.default_rng(0)
  for identity in range(identities):
    folder = root / f'person {identity}'
    folder.mkdir(parents=True)
    for number in range(images):
      pixels = rng.integers(0, 256, [size[1], size[0], 3]).astype(np.uint8)
      picture = PIL.Image.fromarray(pixels).convert(mode)
      picture.save(folder / f'{number}.png')
  return root


def test_a_survey_counts_pictures_and_reads_their_headers(tmp_path):
  root = make_images(tmp_path / 'images')
  (root / 'person 0' / '9.jpg').write_bytes(b'cut short')
  (root / 'person 1' / 'notes.txt').write_text('no picture')
  (root / 'person 1' / '.hidden.png').write_bytes(b'')
  (root / '__MACOSX').mkdir()
  (root / '__MACOSX' / 'a.png').write_bytes(b'')
  (root / 'empty').mkdir()
  found = own_page.survey(root)
  assert found == own_page.Survey(
    identities=12, images=37, fewest=3, most=4, height=30, width=40,
    is_colour=True,
  )  # fmt: skip


def test_grey_pictures_are_found_grey(tmp_path):
  found = own_page.survey(make_images(tmp_path / 'images', mode='L'))
  assert not found.is_colour
  proposal = own_page.propose(found, name='x', pretrains=False)
  assert proposal.size == '28x28x1'


def test_what_is_no_folder_of_identities_is_refused(tmp_path):
  with pytest.raises(own_page.OwnImagesError, match='--images must be a dir'):
    own_page.survey(tmp_path / 'nowhere')
  root = make_images(tmp_path / 'images')
  with pytest.raises(own_page.OwnImagesError, match=r'at least 10 .* got 3'):
    own_page.survey(make_images(tmp_path / 'few', identities=3))
  for file in root.glob('*/*.png'):
    file.write_bytes(b'damaged')
  with pytest.raises(own_page.OwnImagesError, match='that can be read'):
    own_page.survey(root)


def test_few_users_are_a_simulation_and_the_page_says_what_privacy_costs():
  found = own_page.propose(_survey(), name='Ann & Ben', pretrains=True)
  assert (found.name, found.validation, found.test) == ('Ann-Ben', 30, 60)
  assert found.simulation and found.noise_multiplier == 0.02
  assert (found.users_per_round, found.virtual_clients) == (52, 3)
  assert own_page.noise_for_budget(found, 210) > 1


def test_many_users_get_a_budget_that_the_noise_keeps():
  found = own_page.propose(
    _survey(identities=200_000), name='many', pretrains=False
  )
  assert not found.simulation
  private = 200_000 - found.validation - found.test
  page = found.page()
  plan = settings_lib.plan_from_config(
    page.privacy, population=private, rounds=found.rounds
  )
  epsilon = plan.guarantee(found.rounds).epsilon
  assert 0.9 * found.budget_epsilon < epsilon <= found.budget_epsilon


@pytest.mark.parametrize('identities', [10, 300, 200_000])
@pytest.mark.parametrize('pretrains', [False, True])
def test_the_page_loads_and_its_plan_holds(tmp_path, identities, pretrains):
  found = _survey(identities=identities)
  proposal = own_page.propose(found, name='faces', pretrains=pretrains)
  path = tmp_path / 'faces' / own_page.PAGE
  own_page.write(
    path,
    found,
    proposal,
    images=tmp_path / 'it is mine',
    public=tmp_path / 'public' if pretrains else None,
  )
  page = config.load(path)
  assert page.name == page.privacy.population == 'faces'
  assert page.data.directory == str(tmp_path / 'faces' / 'data')
  assert page.pretraining.enabled is pretrains
  assert page.privacy.simulation is (page.privacy.budget_epsilon is None)
  text = path.read_text()
  assert f'{identities} identities with 2400 images' in text
  assert "'" + str(tmp_path / 'it is mine') + "'" in text  # As a shell has it.
  assert text.count('\n\n\n') == 0
  paths = directory.RunDirectory(page, runs=tmp_path / 'runs')
  with opened.open_run(paths) as run:
    private = identities - proposal.validation - proposal.test
    run.__dict__['private'] = type('_Store', (), {'num_users': private})
    assert run.plan.population == private


def test_a_page_is_never_overwritten(tmp_path):
  path = tmp_path / own_page.PAGE
  os.symlink('nowhere', path)
  proposal = own_page.propose(_survey(), name='faces', pretrains=False)
  with pytest.raises(own_page.OwnImagesError, match='never overwritten'):
    own_page.write(path, _survey(), proposal, images=tmp_path, public=None)
  assert path.is_symlink() and not path.exists()


def test_a_path_that_breaks_a_line_is_refused(tmp_path):
  proposal = own_page.propose(_survey(), name='faces', pretrains=False)
  with pytest.raises(own_page.OwnImagesError, match='printable'):
    own_page.import_command(
      proposal, images=tmp_path / 'a\nb', output=tmp_path, public=None
    )


@pytest.mark.parametrize(
  ('text', 'name'),
  [
    ('Übung', 'bung'),
    ('...', 'own-images'),
    ('a b', 'a-b'),
    ('x' * 99, 'x' * 64),
  ],
)
def test_any_text_gives_a_name(text, name):
  assert own_page.slug(text) == name
  config.from_mapping({'name': name})
