"""A commented page for own images: what was found, what is proposed, and why.

Headers alone are read, of a sample: this takes seconds on a million pictures,
and what is damaged is the import's to say.
"""

import dataclasses
import os
import pathlib
import re
import shlex
import statistics

import PIL.Image

from launch.pages import jinja
from tff_dpemb import config
from tff_dpemb import images as image_codec
from tff_dpemb.artifacts import storage
from tff_dpemb.data import data_sets
from tff_dpemb.data.sources import folder_reading
from tff_dpemb.privacy import guarantee

PAGE = 'page.toml'
DATA = 'data'  # the data set beside the page

_SAMPLE = 256  # pictures whose headers are read
_GREY_MODES = ('1', 'L', 'LA', 'I', 'I;16')
_FEWEST_IDENTITIES = 10
_MOST_A_ROUND = 256  # users, of a small population
_USERS_TOGETHER = 16  # users of a virtual client: its head tells them apart
# Below it no noise that hides a user leaves something to learn.
_HIDING_POPULATION = 100_000
_EPSILON = 8.0
_ROUNDS = 30


class OwnImagesError(ValueError):
  """A folder that holds no images of identities, or a page that is there."""


@dataclasses.dataclass(frozen=True)
class Survey:
  """What a folder of identities holds.

  Attributes:
    identities: Folders with a picture at least.
    images: Pictures in them, by their suffix.
    fewest: Of one identity.
    most: Of one identity.
    height: Median over the sample, pixels.
    width: Likewise.
    is_colour: Whether any picture of the sample has colour.
  """

  identities: int
  images: int
  fewest: int
  most: int
  height: int
  width: int
  is_colour: bool


@dataclasses.dataclass(frozen=True)
class Proposal:
  """What is proposed for images; all of it may be changed in the page."""

  name: str
  validation: int
  test: int
  size: str
  backbone: str
  pretrains: bool
  users_per_round: int
  virtual_clients: int
  rounds: int
  noise_multiplier: float
  simulation: bool
  budget_epsilon: float

  def page(self) -> config.RunConfig:
    """Returns the page that the template writes, as far as privacy goes."""
    return config.from_mapping(
      {
        'name': self.name,
        'privacy': {
          'population': self.name,
          'clipping': 'fixed',
          'noise_multiplier': self.noise_multiplier,
          'users_per_round': self.users_per_round,
          'virtual_clients': self.virtual_clients,
        },
        'training': {'rounds': self.rounds},
      }
    )


def survey(folder: pathlib.Path) -> Survey:
  """Returns what a folder with one folder an identity holds.

  Raises:
    OwnImagesError: It is none, or holds too few identities to split.
    DataError: It holds no folder of an identity.
  """
  if not folder.is_dir():
    raise OwnImagesError(
      f'--images must be a directory with one folder an identity, got'
      f' {str(folder)!r}; check the path.'
    )
  counts: list[int] = []
  files: list[pathlib.Path] = []
  # As the import will read them.
  identities, _, _ = folder_reading.find_identities(folder, flag='--images')
  for identity in identities:
    found = folder_reading.image_files(identity.folder)
    if found:
      counts.append(len(found))
      files.append(found[len(files) % len(found)])
  if len(counts) < _FEWEST_IDENTITIES:
    raise OwnImagesError(
      f'{str(folder)!r} must hold at least {_FEWEST_IDENTITIES} folders with'
      f' pictures, one an identity (identity/picture.jpg), got {len(counts)};'
      ' name the folder above them with --images.'
    )
  step = max(1, len(files) // _SAMPLE)
  headers = [header for file in files[::step] if (header := _header(file))]
  if not headers:
    raise OwnImagesError(
      f'{str(folder)!r} must hold pictures that can be read'
      f' ({", ".join(image_codec.FORMATS)}), got none in a sample.'
    )
  return Survey(
    identities=len(counts),
    images=sum(counts),
    fewest=min(counts),
    most=max(counts),
    height=int(statistics.median(header[0] for header in headers)),
    width=int(statistics.median(header[1] for header in headers)),
    is_colour=any(header[2] for header in headers),
  )


def propose(found: Survey, *, name: str, pretrains: bool) -> Proposal:
  """Returns settings for a first run on what was found.

  Args:
    found: The private images.
    name: Of the run and of the population: any text.
    pretrains: Whether there are public images.
  """
  validation, test = data_sets.propose_held_out(found.identities)
  private = found.identities - validation - test
  hides = private >= _HIDING_POPULATION
  a_round = private // 20 if hides else min(_MOST_A_ROUND, private // 4)
  a_round = max(2, a_round)
  side = 28 if min(found.height, found.width) < 32 else 32
  first = Proposal(
    name=slug(name),
    validation=validation,
    test=test,
    size=f'{side}x{side}x{3 if found.is_colour else 1}',
    backbone='lenet',
    pretrains=pretrains,
    users_per_round=a_round,
    virtual_clients=max(2, a_round // _USERS_TOGETHER),
    rounds=_ROUNDS,
    noise_multiplier=0.02,
    simulation=not hides,
    budget_epsilon=_EPSILON,
  )
  if not hides:
    return first
  noise = noise_for_budget(first, private)
  return dataclasses.replace(first, noise_multiplier=noise)


def noise_for_budget(proposal: Proposal, private: int) -> float:
  """Returns the noise multiplier at which all rounds cost the budget.

  Rounded up, to three digits.
  """
  # The accounting takes seconds to import.
  from tff_dpemb.privacy.planning import calibration
  from tff_dpemb.privacy.planning import settings

  page = proposal.page()
  plan = settings.plan_from_config(
    page.privacy, population=private, rounds=proposal.rounds
  )
  found = calibration.calibrate(plan, proposal.budget_epsilon)
  return float(f'{found.mechanism.noise_multiplier * 1.005:.3g}')


def write(
  path: pathlib.Path,
  found: Survey,
  proposal: Proposal,
  *,
  images: pathlib.Path,
  public: pathlib.Path | None,
) -> None:
  """Writes the page at a path where nothing is.

  Raises:
    OwnImagesError: Something is there, or a path cannot stand in a page.
    ArtifactError: The disk refused.
  """
  if os.path.lexists(path):
    raise OwnImagesError(
      f'{str(path)!r} must not exist: a page is never overwritten; edit it, move'
      ' it away, or name another directory.'
    )
  private = found.identities - proposal.validation - proposal.test
  text = jinja.render(
    'own_page.toml.j2',
    found=found,
    proposal=proposal,
    private=private,
    noise_of_budget=noise_for_budget(proposal, private),
    epsilon=guarantee.epsilon_text(proposal.budget_epsilon),
    command=import_command(
      proposal, images=images, output=path.parent / DATA, public=public
    ),
    page=shlex.quote(str(path)),
    data=DATA,
  )
  path.parent.mkdir(parents=True, exist_ok=True)
  storage.atomic_write_bytes(path, text.encode())
  config.load(path)  # What we write must be a page.


def import_command(
  proposal: Proposal,
  *,
  images: pathlib.Path,
  output: pathlib.Path,
  public: pathlib.Path | None,
) -> str:
  """Returns the command that imports the images as the page expects them.

  Raises:
    OwnImagesError: A path holds what no line of a page can.
  """
  words = ['dpemb', 'data', 'folder', '--input', str(images)]
  if public is not None:
    words += ['--public', str(public)]
  words += ['--output', str(output), '--size', proposal.size]
  words += ['--validation', str(proposal.validation)]
  words += ['--test', str(proposal.test)]
  command = shlex.join(words)
  if not command.isprintable():
    raise OwnImagesError(
      f'paths must hold printable characters only, got {command!r}; rename the'
      ' directories.'
    )
  return command


def slug(text: str) -> str:
  """Returns a text as a name of a run: letters, digits, '.', '_' and '-'."""
  name = re.sub(r'[^A-Za-z0-9._-]+', '-', text).strip('-._')[:64]
  return name or 'own-images'


def _header(file: pathlib.Path) -> tuple[int, int, bool] | None:
  """Returns height, width and whether there is colour; None if unreadable."""
  try:
    with PIL.Image.open(file, formats=image_codec.FORMATS) as picture:
      return picture.height, picture.width, picture.mode not in _GREY_MODES
  except Exception:  # noqa: BLE001  (any damage: the import names it)
    return None
