"""What an audit holds a run to, and what its verdict does not say."""

import dataclasses
import pathlib

import click

from launch.run import opened
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.audit import bounds


def certified(
  claim: bounds.Claim, path: pathlib.Path | None
) -> tuple[bounds.Claim, str]:
  """Returns the claim with the certificate's epsilon, if there is one.

  The plan's further claims stay: the certificate rests on the same proof.
  """
  if path is None or not path.exists():
    return claim, 'plan'
  accounting = storage.read_json(path)['accounting']
  if accounting['delta'] != claim.delta:
    return claim, 'plan'
  epsilon = guarantee.epsilon_from_json(accounting['epsilon'])
  return dataclasses.replace(claim, epsilon=epsilon), 'certificate'


def echo_simulation(run: opened.OpenRun, found: bounds.Audit) -> None:
  """Says that a simulation's claim could not have been contradicted."""
  if run.config.privacy.simulation and found.is_trivial:
    click.echo(
      'The page is a simulation: its epsilon promises next to nothing, so'
      ' "consistent" is trivially true here.'
    )
