"""The ledger: what is charged, refused and found."""

import datetime
import functools
import math
import shutil

import pytest
from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.ledger import ledger as ledger_lib

_EVENT = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
_ADD_REMOVE = guarantee.Adjacency.ADD_OR_REMOVE_ONE


@pytest.fixture(name='path')
def _path(tmp_path):
  return tmp_path / 'runs' / 'ledger.sqlite'


@pytest.fixture(name='book')
def _book(database):
  with ledger_lib.Ledger.open(database.url) as book:
    yield book


def _charge(book, number=0, **changes):
  values = {
    'population': 'glyphs',
    'release': 'quick/model',
    'run': 'quick',
    'event': _EVENT,
    'round_number': number,
  }
  return book.charge(**(values | changes))


def test_an_entry_holds_all_that_it_was_charged_with(book):
  entry = _charge(
    book,
    3,
    plan_digest='a' * 64,
    config_digest='b' * 64,
    code_revision='c0ffee',
    details={'cohort': 'poisson'},
  )
  (found,) = book.entries()
  assert found == entry
  assert found.sequence == 1
  assert found.kind == 'draw'
  assert (found.population, found.release, found.run) == (
    'glyphs',
    'quick/model',
    'quick',
  )
  assert (found.round_number, found.attempt) == (3, 1)
  assert found.event == _EVENT
  assert found.adjacency is _ADD_REMOVE
  assert found.plan_digest == 'a' * 64
  assert found.config_digest == 'b' * 64
  assert found.code_revision == 'c0ffee'
  assert found.details == {'cohort': 'poisson'}
  recorded = datetime.datetime.fromisoformat(found.recorded_at)
  assert recorded.tzinfo is datetime.UTC
  assert len(found.digest) == 64
  assert found.to_json()['event']['class_name'] == 'PoissonSampledDpEvent'


def test_a_round_that_is_drawn_again_is_paid_again(book):
  attempts = [_charge(book, number).attempt for number in (50, 51, 51, 51)]
  assert attempts == [1, 1, 2, 3]
  assert book.draw_counts(run='quick') == ((_EVENT, 4),)
  assert book.spent('glyphs', 1e-5).epsilon == pytest.approx(
    accountant.guarantee_of_event(
      dp_event.SelfComposedDpEvent(_EVENT, 4), delta=1e-5, adjacency=_ADD_REMOVE
    ).epsilon
  )


def test_attempts_of_other_runs_and_releases_are_their_own(book):
  _charge(book, 1)
  assert _charge(book, 1, run='other').attempt == 1
  assert _charge(book, 1, release='quick/synthetic').attempt == 1
  assert _charge(book, None).attempt == 1
  assert _charge(book, None).attempt == 2


def test_entries_outlive_the_process(database):
  with ledger_lib.Ledger.open(database.url) as book:
    _charge(book)
  with ledger_lib.Ledger.open(database.url) as book:
    assert [entry.sequence for entry in book.entries()] == [1]
    assert _charge(book, 1).sequence == 2
    assert book.verify() == []


def test_training_and_synthesis_of_a_population_add_up(book):
  release = dp_event.ComposedDpEvent(
    [dp_event.GaussianDpEvent(4.0), dp_event.GaussianDpEvent(3.0)]
  )
  for number in range(5):
    _charge(book, number)
  _charge(book, None, release='quick/synthetic', event=release)
  _charge(book, None, population='other', event=dp_event.GaussianDpEvent(0.1))
  expected = accountant.guarantee_of_event(
    dp_event.ComposedDpEvent(
      [dp_event.SelfComposedDpEvent(_EVENT, 5), release]
    ),
    delta=1e-5,
    adjacency=_ADD_REMOVE,
  )
  assert book.spent('glyphs', 1e-5).epsilon == pytest.approx(expected.epsilon)
  assert book.releases('glyphs') == ['quick/model', 'quick/synthetic']
  assert book.populations() == ['glyphs', 'other']
  composed = accountant.guarantee_of_event(
    book.composed_event('glyphs'), delta=1e-5, adjacency=_ADD_REMOVE
  )
  assert composed.epsilon == pytest.approx(expected.epsilon)


def test_nothing_drawn_costs_nothing(book):
  assert book.spent('glyphs', 1e-5).epsilon == 0
  with pytest.raises(ledger_lib.LedgerError, match='has no budget'):
    book.spent('glyphs')


def test_a_draw_without_noise_leaves_no_guarantee(book):
  _charge(book, 0)
  _charge(book, 1, event=dp_event.NonPrivateDpEvent())
  found = book.spent('glyphs', 1e-5)
  assert found.epsilon == math.inf
  assert 'no noise' in found.warnings[0]


def test_an_unsupported_draw_leaves_no_guarantee(book):
  _charge(book, 1, event=dp_event.UnsupportedDpEvent())
  found = book.spent('glyphs', 1e-5)
  assert found.epsilon == math.inf
  assert 'No accountant supports' in found.warnings[0]


@pytest.mark.parametrize(
  'event', [dp_event.NonPrivateDpEvent(), dp_event.UnsupportedDpEvent()]
)
def test_what_has_no_guarantee_never_fits_a_budget(book, event):
  book.set_budget('glyphs', guarantee.Budget(100.0, 1e-5))
  with pytest.raises(ledger_lib.BudgetExceededError, match='no guarantee'):
    _charge(book, event=event)
  assert book.entries(kind='draw') == []


def test_another_adjacency_is_refused(book):
  _charge(book)
  with pytest.raises(ledger_lib.LedgerError, match='adjacency must be add-or'):
    _charge(
      book,
      event=dp_event.GaussianDpEvent(1.0),
      adjacency=guarantee.Adjacency.REPLACE_ONE,
    )
  assert len(book.entries()) == 1


@pytest.mark.parametrize(
  'changes',
  [
    {'population': ''},
    {'run': 'x' * 129},
    {'release': ''},
    {'event': dp_event.GaussianDpEvent(-1.0)},
    {'details': {'loss': math.nan}},
  ],
)
def test_illegal_charges_write_nothing(book, changes):
  with pytest.raises(guarantee.PrivacyError, match='must be'):
    _charge(book, **changes)
  assert book.entries() == []


def test_a_budget_is_never_exceeded_and_warned_of(book):
  event = dp_event.GaussianDpEvent(20.0)
  book.set_budget('glyphs', guarantee.Budget(0.8, 1e-5), approved_by='board')
  fitting = book.headroom('glyphs', event)
  warned_at = None
  count = 0
  with pytest.raises(ledger_lib.BudgetExceededError) as refused:
    while True:
      entry = _charge(book, count, event=event)
      count += 1
      if entry.warning and warned_at is None:
        warned_at = book.spent('glyphs').epsilon
        assert '80%' in entry.warning
  assert count == fitting
  spent = book.spent('glyphs')
  assert spent.epsilon <= 0.8
  assert 0.8 * 0.8 < warned_at < 0.8 * 0.8 + 0.05
  assert refused.value.left == pytest.approx(0.8 - spent.epsilon)
  assert f'left {refused.value.left:.4g}' in str(refused.value)
  # Nothing was written, and cheaper draws may still fit.
  assert len(book.entries(kind='draw')) == count
  assert book.headroom('glyphs', event) == 0
  _charge(book, count, event=dp_event.GaussianDpEvent(1e4))
  assert book.spent('glyphs').epsilon <= 0.8
  assert book.verify() == []


def test_the_budget_covers_all_releases(book):
  book.set_budget('glyphs', guarantee.Budget(1.0, 1e-5))
  release = dp_event.GaussianDpEvent(5.0)  # About 0.9 alone.
  _charge(book, None, release='one', event=release)
  with pytest.raises(ledger_lib.BudgetExceededError):
    _charge(book, None, release='two', run='other', event=release)
  _charge(book, None, population='another', event=release)


def test_refusals_give_the_whole_command(book):
  delta = 1 / 30001
  book.set_budget('my glyphs', guarantee.Budget(1.0, delta))
  with pytest.raises(ledger_lib.LedgerError) as error:
    book.set_budget('my glyphs', guarantee.Budget(2.5, delta))
  assert (
    f"`dpemb ledger budget 'my glyphs' --epsilon 2.5 --delta {delta!r}"
    ' --replace`'
  ) in str(error.value)
  with pytest.raises(ledger_lib.BudgetExceededError) as error:
    _charge(book, population='my glyphs', event=dp_event.GaussianDpEvent(0.5))
  assert f'at delta {delta!r}: spent' in str(error.value)
  assert (
    f"`dpemb ledger budget 'my glyphs' --epsilon EPSILON --delta {delta!r}"
    ' --replace`'
  ) in str(error.value)


def test_budgets_change_only_when_asked(book):
  budget = guarantee.Budget(1.0, 1e-5)
  book.set_budget('glyphs', budget)
  book.set_budget('glyphs', budget)
  assert len(book.entries(kind='budget')) == 1
  with pytest.raises(ledger_lib.LedgerError, match='--replace'):
    book.set_budget('glyphs', guarantee.Budget(2.0, 1e-5))
  book.set_budget(
    'glyphs', guarantee.Budget(2.0, 1e-5), replace=True, approved_by='board'
  )
  assert book.budget('glyphs') == guarantee.Budget(2.0, 1e-5)
  assert book.entries(kind='budget')[-1].details['approved_by'] == 'board'
  assert book.budget('another') is None


@pytest.mark.parametrize(
  ('epsilon', 'delta'),
  [(0.0, 1e-5), (math.inf, 1e-5), (math.nan, 1e-5), (1.0, 0.0), (1.0, 1.0)],
)
def test_illegal_budgets_are_refused(epsilon, delta):
  with pytest.raises(guarantee.PrivacyError, match='budget .* must be'):
    guarantee.Budget(epsilon, delta)


def test_a_release_is_recorded_and_costs_nothing(book):
  _charge(book)
  before = book.spent('glyphs', 1e-5).epsilon
  entry = book.record_release(
    population='glyphs', release='quick/model', run='quick', digest='d' * 64
  )
  assert entry.kind == 'release'
  assert entry.details == {'artifact_digest': 'd' * 64}
  assert book.spent('glyphs', 1e-5).epsilon == before
  assert book.verify() == []


def test_charges_do_no_accounting_once_it_is_known(book, monkeypatch):
  book.set_budget('glyphs', guarantee.Budget(50.0, 1e-5))
  _charge(book)  # The first of a kind pays for the accounting.

  def refuse(*unused, **also_unused):
    raise AssertionError('a charge must not do accounting again')

  with monkeypatch.context() as patch:
    patch.setattr(accountant, 'guarantee_of_counts', refuse)
    for number in range(1, 50):
      _charge(book, number)
  assert book.spent('glyphs').epsilon > 0
  assert book.verify() == []


# ---- SQLite alone ----


def _filled(path):
  with ledger_lib.Ledger.open(path) as book:
    for number in range(5):
      _charge(book, number)
    assert book.verify() == []


def test_an_older_copy_is_found_when_opened(path):
  with ledger_lib.Ledger.open(path) as book:
    _charge(book)
  copy = path.with_suffix('.copy')
  shutil.copy(path, copy)
  with ledger_lib.Ledger.open(path) as book:
    _charge(book, 1)
  shutil.copy(copy, path)
  with pytest.raises(ledger_lib.LedgerDamagedError, match='older copy'):
    ledger_lib.Ledger.open(path)


def test_a_missing_or_edited_mirror_is_found(path):
  _filled(path)
  mirror = path.with_name('ledger.sqlite.head')
  whole = mirror.read_text()
  mirror.write_text(whole.replace('\n3 ', '\nthree '))
  with pytest.raises(ledger_lib.LedgerDamagedError, match='was edited'):
    ledger_lib.Ledger.open(path)
  mirror.unlink()
  with ledger_lib.Ledger.open(path) as book:
    assert 'was removed' in book.verify()[0]


def test_a_mirror_line_cut_short_by_a_crash_is_no_alarm(path):
  _filled(path)
  mirror = path.with_name('ledger.sqlite.head')
  mirror.write_text(mirror.read_text() + '\n6 0123ab')
  with ledger_lib.Ledger.open(path) as book:
    _charge(book, 5)
    assert book.verify() == []


def test_an_emptied_or_cut_mirror_is_found(path):
  _filled(path)
  mirror = path.with_name('ledger.sqlite.head')
  lines = [line for line in mirror.read_text().splitlines() if line]
  for kept, lacks in (
    ([], '5 of 5, the first is 1'),
    (lines[:-2], '1 of 5, the first is 5'),
    (lines[2:], '1 of 5, the first is 1'),
  ):
    mirror.write_text(''.join(f'{line}\n' for line in kept))
    with ledger_lib.Ledger.open(path) as book:
      (problem,) = book.verify()
    assert lacks in problem
  mirror.write_text('')
  with ledger_lib.Ledger.open(path) as book:
    _charge(book, 5)  # Does not heal it.
    assert '5 of 6' in book.verify()[0]


def test_a_crash_before_the_acknowledgement_is_no_alarm(path):
  _filled(path)
  mirror = path.with_name('ledger.sqlite.head')
  lines = mirror.read_text().splitlines()
  assert lines[-1].startswith('5 ')
  mirror.write_text('\n'.join(lines[:-1]) + f'\n~6 {"0" * 64}\n~6')
  with ledger_lib.Ledger.open(path) as book:
    assert book.verify() == []
    _charge(book, 5)
    assert book.verify() == []


@pytest.mark.parametrize('content', [b'\xff\xfe\n', b'1' * 6000 + b' ab\n'])
def test_a_mirror_of_other_bytes_is_damage(path, content):
  _filled(path)
  mirror = path.with_name('ledger.sqlite.head')
  with ledger_lib.Ledger.open(path) as book:
    mirror.write_bytes(content)
    assert 'was edited' in book.verify()[0]
  with pytest.raises(ledger_lib.LedgerDamagedError, match='was edited'):
    ledger_lib.Ledger.open(path)


def test_a_mirror_that_is_a_directory_is_named(path):
  _filled(path)
  mirror = path.with_name('ledger.sqlite.head')
  with ledger_lib.Ledger.open(path) as book:
    mirror.unlink()
    mirror.mkdir()
    assert 'ledger.sqlite.head' in book.verify()[0]
    with pytest.raises(ledger_lib.LedgerError, match='sqlite.head.*writable'):
      _charge(book, 5)
    assert len(book.entries()) == 5
  with pytest.raises(
    ledger_lib.LedgerDamagedError, match='sqlite.head.*must be a file'
  ):
    ledger_lib.Ledger.open(path)


# ---- opening ----


def test_a_file_that_is_no_ledger_is_to_be_restored(tmp_path):
  path = tmp_path / 'ledger.sqlite'
  path.write_bytes(b'garbage ' * 1000)
  with pytest.raises(ledger_lib.LedgerDamagedError) as error:
    ledger_lib.Ledger.open(path, create=False)
  assert 'must be a ledger' in str(error.value)
  assert 'restore it from a backup' in str(error.value)
  assert 'free space' not in str(error.value)


def test_a_directory_is_no_ledger(tmp_path):
  with pytest.raises(
    ledger_lib.LedgerError, match='must be a file, got a directory; give'
  ):
    ledger_lib.Ledger.open(tmp_path, create=False)


def test_memory_is_refused():
  for url in ('sqlite://', 'sqlite:///:memory:'):
    with pytest.raises(ledger_lib.LedgerError, match='must be on disk'):
      ledger_lib.Ledger.open(url)


def test_a_missing_ledger_is_not_made_by_readers(path):
  with pytest.raises(ledger_lib.LedgerError, match='must exist'):
    ledger_lib.Ledger.open(path, create=False)
  assert not path.exists()


def test_a_file_that_is_no_database_is_one_line(path):
  path.parent.mkdir(parents=True)
  path.write_bytes(b'no database at all, but long enough to be looked at' * 99)
  with pytest.raises(ledger_lib.LedgerError, match='not a database') as error:
    ledger_lib.Ledger.open(path)
  assert '\n' not in str(error.value)


def test_other_databases_and_drivers_are_refused_in_one_line():
  with pytest.raises(ledger_lib.LedgerError, match='driver .* must be psycopg'):
    ledger_lib.Ledger.open('postgresql+nosuchdriver://localhost/x')
  with pytest.raises(
    ledger_lib.LedgerError, match="SQLite or PostgreSQL, got 'my"
  ):
    ledger_lib.Ledger.open('mysql://localhost/x')
  with pytest.raises(ledger_lib.LedgerError, match='SQLAlchemy URL') as error:
    ledger_lib.Ledger.open('postgresql://h:port/x?password=secret')
  assert 'secret' not in str(error.value)


def test_the_rounds_attempts_and_the_runs_can_be_asked(book):
  for number in (0, 1, 1):
    _charge(book, number)
  _charge(book, 1, run='other', release='other/model')
  asked = dict(run='quick', release='quick/model')
  assert [book.count_draws(**asked, round_number=n) for n in (0, 1, 2)] == [
    1,
    2,
    0,
  ]
  assert book.runs('glyphs') == ['other', 'quick']
  assert book.runs('glyphs', until=3) == ['quick']


def test_a_sqlite_url_and_a_path_are_the_same_ledger(path):
  with ledger_lib.Ledger.open(path) as book:
    _charge(book)
  with ledger_lib.Ledger.open(f'sqlite:///{path}') as other:
    assert len(other.entries()) == 1


@pytest.mark.parametrize('name', ['a?b#c', '50% mine', 'x%3Fy', 'q?mirror=m'])
def test_a_path_is_a_path_whatever_a_url_would_make_of_it(tmp_path, name):
  path = tmp_path / name / 'ledger.sqlite'
  with ledger_lib.Ledger.open(str(path)) as book:
    _charge(book)
  assert [item.name for item in tmp_path.iterdir()] == [name]
  assert {item.name for item in path.parent.iterdir()} >= {
    'ledger.sqlite',
    'ledger.sqlite.head',
  }
  with ledger_lib.Ledger.open(path, create=False) as book:
    assert len(book.entries()) == 1


@pytest.mark.parametrize('version', [0, 1, 3])
def test_a_ledger_of_another_schema_is_refused(database, book, version):
  _charge(book)
  with database.tamper() as connection:
    connection.exec_driver_sql(f'UPDATE head SET schema_version = {version}')
  with pytest.raises(ledger_lib.LedgerError) as error:
    ledger_lib.Ledger.open(database.url)
  assert str(error.value) == (
    f'ledger must have schema version 2, got {version}; open it with the'
    ' release of dpemb that wrote it. Nothing was charged.'
  )


# ---- data sets ----


def _charge_data(book, population, digest, **changes):
  details = {'data_digest': digest, 'part': 'plan'}
  return _charge(book, population=population, details=details, **changes)


def test_a_data_set_has_one_population(book):
  _charge_data(book, 'glyphs', 'a' * 64)
  _charge_data(book, 'glyphs', 'a' * 64)  # The same users pay again.
  _charge_data(book, 'glyphs', 'b' * 64)  # They have more data now.
  _charge_data(book, 'faces', 'c' * 64)
  book.check_data_set('glyphs', 'a' * 64)
  book.check_data_set('anybody', 'd' * 64)
  assert book.data_sets('glyphs') == ['a' * 64, 'b' * 64]
  assert book.data_sets('faces') == ['c' * 64]
  assert book.data_sets('anybody') == []
  for refused in (book.check_data_set, functools.partial(_charge_data, book)):
    with pytest.raises(ledger_lib.LedgerError) as error:
      refused('fresh name', 'b' * 64)
    assert str(error.value) == (
      "data set bbbbbbbbbbbb is charged to population 'glyphs', got 'fresh"
      " name': a budget is bound to users, not to a name; use population"
      " 'glyphs'. Nothing was charged."
    )
  assert book.populations() == ['faces', 'glyphs']
  assert book.verify() == []


def test_a_data_set_of_another_process_is_seen(database, book):
  book.check_data_set('glyphs', 'a' * 64)
  with ledger_lib.Ledger.open(database.url) as other:
    _charge_data(other, 'faces', 'a' * 64)
  with pytest.raises(ledger_lib.LedgerError, match="'faces'"):
    _charge_data(book, 'glyphs', 'a' * 64)
  assert len(book.entries()) == 1


def test_only_draws_bind_a_data_set(book):
  book.record_release(
    population='faces',
    release='r',
    run='r',
    digest='0' * 64,
    details={'data_digest': 'a' * 64},
  )
  _charge(book, population='faces', details={'note': 'a' * 64})
  book.check_data_set('glyphs', 'a' * 64)


@pytest.mark.parametrize('digest', ['', None, 7])
def test_a_data_digest_is_a_text(book, digest):
  with pytest.raises(
    ledger_lib.LedgerError, match='data_digest must be a text'
  ):
    _charge_data(book, 'glyphs', digest)
  assert book.entries() == []


def test_spending_can_be_read_as_of_an_entry(book):
  for number in range(3):
    _charge(book, number)
  _charge(book, release='quick/other')
  assert book.draw_counts(until=2) == ((_EVENT, 2),)
  assert book.releases('glyphs', until=3) == ['quick/model']
  assert book.spent('glyphs', 1e-5, until=2).epsilon == pytest.approx(
    accountant.guarantee_of_event(
      dp_event.SelfComposedDpEvent(_EVENT, 2), delta=1e-5, adjacency=_ADD_REMOVE
    ).epsilon
  )
