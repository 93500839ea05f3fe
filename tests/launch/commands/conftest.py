"""What the tests of commands share: `dpemb` as a shell would run it."""

import dataclasses

import pytest
from dp_accounting import dp_event

from launch import cli
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.ledger import ledger as ledger_lib

_EVENT = dp_event.GaussianDpEvent(10.0)


@dataclasses.dataclass(frozen=True)
class _Result:
  exit_code: int
  output: str
  errors: str


@pytest.fixture(name='run')
def _run(capsys):
  """Runs `dpemb` with arguments, as a shell would."""

  def run(*arguments):
    capsys.readouterr()
    code = cli.run([str(item) for item in arguments])
    return _Result(code, *capsys.readouterr())

  return run


@pytest.fixture(name='url')
def _url(tmp_path):
  path = tmp_path / 'ledger.sqlite'
  with ledger_lib.Ledger.open(path) as book:
    book.set_budget('glyphs', guarantee.Budget(2.0, 1e-5))
    for _ in range(3):
      book.charge(
        population='glyphs',
        release='quick/synthetic',
        run='quick',
        event=_EVENT,
      )
  return path
