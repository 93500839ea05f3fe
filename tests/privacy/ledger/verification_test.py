"""What `verify` finds: each way to change a ledger, on both databases."""

import pytest
import sqlalchemy as sa
from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.ledger import store

_EVENT = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
_NO_OP = '{"class_name":"NoOpDpEvent","module_name":"dp_accounting.dp_event"}'


def _run(connection, statement, **values):
  connection.execute(sa.text(statement), values)


def _rows(connection):
  rows = connection.execute(
    sa.select(store.entries).order_by(store.entries.c.sequence)
  )
  return [dict(row) for row in rows.mappings()]


def _edit(column, value):
  def tamper(connection):
    _run(
      connection,
      f'UPDATE entries SET {column} = :value WHERE sequence = 4',
      value=value,
    )

  return tamper


def _delete(sequence):
  def tamper(connection):
    _run(connection, f'DELETE FROM entries WHERE sequence = {sequence}')

  return tamper


def _delete_and_close_the_gap(connection):
  _run(connection, 'DELETE FROM entries WHERE sequence = 3')
  for sequence in range(4, 8):
    _run(
      connection,
      f'UPDATE entries SET sequence = {sequence - 1} WHERE sequence ='
      f' {sequence}',
    )
  _run(connection, 'UPDATE head SET entry_count = 6')


def _swap(connection):
  for old, new in ((3, 99), (4, 3), (99, 4)):
    _run(
      connection,
      f'UPDATE entries SET sequence = {new} WHERE sequence = {old}',
    )


def _add(connection, row):
  connection.execute(store.entries.insert().values(**row))
  _run(
    connection,
    'UPDATE head SET entry_count = :count, digest = :digest',
    count=row['sequence'],
    digest=row['digest'],
  )


def _replay(connection):
  """An old entry again at the end, as it is."""
  _add(connection, _rows(connection)[3] | {'sequence': 8})


def _duplicate(connection):
  """The last entry once more, with a place of its own but no new digest."""
  _add(connection, _rows(connection)[-1] | {'sequence': 8, 'attempt': 2})


def _truncate_with_head(connection):
  _run(connection, 'DELETE FROM entries WHERE sequence > 4')
  _run(
    connection,
    'UPDATE head SET entry_count = 4, digest = :digest',
    digest=_rows(connection)[-1]['digest'],
  )


def _rechain(connection, *, first, change):
  """A forger who knows the format: a chain made anew from `first` on."""
  ledger_id = connection.execute(sa.select(store.head.c.ledger_id)).scalar_one()
  previous = store.genesis_digest(ledger_id)
  for row in _rows(connection):
    if row['sequence'] >= first:
      row |= change | {'previous_digest': previous}
      row['digest'] = store.entry_digest(row)
      connection.execute(
        store.entries.update()
        .where(store.entries.c.sequence == row['sequence'])
        .values(**row)
      )
    previous = row['digest']
  _run(connection, 'UPDATE head SET digest = :digest', digest=previous)


def _rechain_a_suffix(connection):
  _rechain(connection, first=5, change={'round_number': 77})


def _rechain_a_budget(connection):
  _rechain(
    connection,
    first=1,
    change={'details': '{"approved_by": "", "delta": 1e-05, "epsilon": 800.0}'},
  )


def _rewrite_all(connection):
  _run(connection, 'DELETE FROM entries WHERE sequence > 4')
  _run(connection, 'UPDATE head SET entry_count = 4')
  _rechain(connection, first=1, change={'round_number': 77})


# What whoever owns the database can change, in a ledger of seven entries: a
# budget, a lease taken, four draws, and the lease given back.
_FROM_INSIDE = {
  **{
    f'edit_{column}': _edit(column, value)
    for column, value in {
      'kind': 'release',
      'population': 'other',
      'release': 'other',
      'run': 'other',
      'round_number': 99,
      'attempt': 2,
      'event': _NO_OP,
      'event_digest': '0' * 64,
      'adjacency': 'replace-one-user',
      'plan_digest': '0' * 64,
      'config_digest': '0' * 64,
      'code_revision': 'other',
      'details': '{"a": 1}',
      'recorded_at': '2020-01-01T00:00:00+00:00',
      'previous_digest': '0' * 64,
      'digest': '0' * 64,
    }.items()
  },
  'edit_budget': lambda c: _run(
    c,
    'UPDATE entries SET details = :details WHERE sequence = 1',
    details='{"approved_by": "", "delta": 1e-05, "epsilon": 800.0}',
  ),
  'delete_first': _delete(1),
  'delete_middle': _delete(4),
  'delete_last': _delete(7),
  'delete_and_close_the_gap': _delete_and_close_the_gap,
  'reorder': _swap,
  'replay': _replay,
  'duplicate': _duplicate,
  'empty': lambda c: _run(c, 'DELETE FROM entries'),
  'edit_head_count': lambda c: _run(c, 'UPDATE head SET entry_count = 6'),
  'edit_head_digest': lambda c: _run(c, "UPDATE head SET digest = 'x'"),
  'edit_ledger_id': lambda c: _run(c, "UPDATE head SET ledger_id = 'x'"),
  'delete_head': lambda c: _run(c, 'DELETE FROM head'),
  'add_head': lambda c: _run(
    c,
    'INSERT INTO head SELECT 2, ledger_id, schema_version, entry_count, digest'
    ' FROM head',
  ),
  'edit_lease_status': lambda c: _run(c, "UPDATE leases SET status = 'held'"),
  'edit_lease_slot': lambda c: _run(c, "UPDATE leases SET slot = 'tuesday'"),
  'edit_lease_holder': lambda c: _run(
    c, "UPDATE leases SET holder = 'a 1 2 3'"
  ),
  'edit_lease_generation': lambda c: _run(
    c, 'UPDATE leases SET generation = generation + 1'
  ),
  'delete_lease': lambda c: _run(c, 'DELETE FROM leases'),
  'add_lease': lambda c: _run(
    c,
    "INSERT INTO leases SELECT 'other', slot, holder, generation, status,"
    ' expires_at FROM leases',
  ),
}
# The chain that they leave is whole: only what lies elsewhere can tell.
_FROM_OUTSIDE = {
  'truncate_with_head': _truncate_with_head,
  'rechain_a_suffix': _rechain_a_suffix,
  'rechain_a_budget': _rechain_a_budget,
  'rewrite_all': _rewrite_all,
}


def _fill(database):
  """Makes the ledger of seven entries; returns its head."""
  with ledger_lib.Ledger.open(database.url) as book:
    book.set_budget('glyphs', guarantee.Budget(8.0, 1e-5))
    lease = book.acquire_lease('quick', 'monday')
    for number in range(4):
      book.charge(
        population='glyphs',
        release='quick/model',
        run='quick',
        event=_EVENT,
        round_number=number,
        lease=lease,
      )
    book.release_lease(lease, complete=True)
    assert book.verify() == []
    assert book.verify(head=book.head()) == []
    return book.head()


def _problems(database, head=None):
  try:
    with ledger_lib.Ledger.open(database.url) as book:
      return book.verify(head=head)
  except errors.LedgerDamagedError as error:
    return [str(error)]  # Found when opened already.


@pytest.mark.parametrize('name', _FROM_INSIDE)
def test_tampering_is_found_from_inside(database, name):
  head = _fill(database)
  assert _problems(database, head) == []
  with database.without_triggers() as connection:
    _FROM_INSIDE[name](connection)
  assert _problems(database) != []


@pytest.mark.parametrize('name', _FROM_OUTSIDE)
def test_a_chain_made_anew_is_found_by_the_mirror_or_a_noted_head(
  any_database, name
):
  head = _fill(any_database)
  with any_database.without_triggers() as connection:
    _FROM_OUTSIDE[name](connection)
  # Without a mirror the change cannot be seen from inside, except that the
  # cut or edited entries took the leases' with them.
  if any_database.mirror is not None:
    assert _problems(any_database) != []
  elif name == 'rechain_a_suffix':
    assert _problems(any_database) == []
  assert _problems(any_database, head) != []


def test_a_noted_head_of_the_past_still_holds(database):
  head = _fill(database)
  with ledger_lib.Ledger.open(database.url) as book:
    book.set_budget('other', guarantee.Budget(1.0, 1e-5))
    assert book.verify(head=head) == []
    assert book.verify(head=(head[0], '0' * 64)) != []
    assert book.verify(head=(99, head[1])) != []


def test_a_tampered_ledger_takes_no_charge(database):
  _fill(database)
  with database.without_triggers() as connection:
    _FROM_INSIDE['edit_head_count'](connection)
  with ledger_lib.Ledger.open(database.url) as book:
    with pytest.raises(errors.LedgerDamagedError, match='must agree'):
      book.acquire_lease('quick', 'tuesday')


_WRITES = {
  'charge': lambda book: book.charge(
    population='glyphs', release='quick/model', run='quick', event=_EVENT
  ),
  'set_budget': lambda book: book.set_budget(
    'other', guarantee.Budget(1.0, 1e-5)
  ),
  'record_release': lambda book: book.record_release(
    population='glyphs', release='quick/model', run='quick', digest='d'
  ),
  'acquire_lease': lambda book: book.acquire_lease('quick', 'tuesday'),
}


@pytest.mark.parametrize('name', _WRITES)
def test_a_ledger_that_lacks_entries_takes_no_write(database, name):
  _fill(database)
  with database.without_triggers() as connection:
    _run(connection, 'DELETE FROM entries WHERE sequence IN (3, 4, 5)')
  with ledger_lib.Ledger.open(database.url) as book:
    for _ in range(2):  # It does not wear off.
      with pytest.raises(
        errors.LedgerDamagedError, match='must hold 7 entries.*got 4'
      ):
        _WRITES[name](book)
    assert [entry.sequence for entry in book.entries()] == [1, 2, 6, 7]
    assert book.head()[0] == 7


@pytest.mark.parametrize('name', _WRITES)
def test_an_end_cut_off_meanwhile_is_found_by_the_next_write(database, name):
  _fill(database)
  with ledger_lib.Ledger.open(database.url) as book:
    book.set_budget('third', guarantee.Budget(1.0, 1e-5))
    with database.without_triggers() as connection:
      _run(connection, 'DELETE FROM entries WHERE sequence = 8')
    with pytest.raises(errors.LedgerDamagedError, match='must agree'):
      _WRITES[name](book)
    assert book.entries()[-1].sequence == 7


@pytest.mark.parametrize('statement', ['delete_head', 'add_head'])
def test_a_ledger_without_its_one_head_record_takes_no_write(
  database, statement
):
  _fill(database)
  with database.without_triggers() as connection:
    _FROM_INSIDE[statement](connection)
  with ledger_lib.Ledger.open(database.url) as book:
    for action in (*_WRITES.values(), lambda book: book.head()):
      with pytest.raises(errors.LedgerDamagedError, match='one head record'):
        action(book)


def test_a_new_ledger_is_whole(any_database):
  with ledger_lib.Ledger.open(any_database.url) as book:
    assert book.verify() == []


# SQLite keeps bytes, and texts that are not UTF-8, in a column of text.
_NO_TEXT = ("x'ff00'", "CAST(x'ff00' AS TEXT)")


@pytest.mark.parametrize(
  ('column', 'value'),
  [
    *((column, "'{'") for column in ('event', 'details')),
    *((column, "'[1]'") for column in ('event', 'details')),
    ('event', "'{}'"),
    pytest.param('event', f"'{'[' * 100_000}'", id='event-nested'),
    ('adjacency', "'none'"),
    *(
      (column, value)
      for column in ('event', 'details', 'run', 'digest', 'recorded_at')
      for value in _NO_TEXT
    ),
    ('attempt', "'twice'"),
  ],
)
def test_a_damaged_entry_is_named(database, column, value):
  if database.kind != 'sqlite' and (value in _NO_TEXT or column == 'attempt'):
    pytest.skip('PostgreSQL keeps only values of the type of a column')
  _fill(database)
  with database.without_triggers() as connection:
    connection.exec_driver_sql(
      f'UPDATE entries SET {column} = {value} WHERE sequence = 4'
    )
    _run(connection, "UPDATE entries SET run = 'other' WHERE sequence = 6")
  with ledger_lib.Ledger.open(database.url) as book:
    with pytest.raises(errors.LedgerDamagedError, match='entry 4 ') as info:
      book.entries()
    assert info.value.exit_code == 5
    problems = book.verify()
    if column == 'event':
      for read in (
        lambda: book.draw_counts(population='glyphs'),
        lambda: book.composed_event('glyphs'),
      ):
        with pytest.raises(errors.LedgerDamagedError, match='entry 4 '):
          read()
    if column == 'run' and value in _NO_TEXT:
      with pytest.raises(errors.LedgerDamagedError, match='entry 4 '):
        book.runs('glyphs')
  assert any('entry 4 of the ledger' in problem for problem in problems)
  # It goes on to the end.
  assert any('entry 6 must match its digest' in text for text in problems)


@pytest.mark.parametrize('value', ["'{'", "x'ff00'", "CAST(x'ff00' AS TEXT)"])
def test_a_damaged_first_draw_is_named_by_what_depends_on_it(database, value):
  if database.kind != 'sqlite' and value in _NO_TEXT:
    pytest.skip('PostgreSQL keeps only texts in a column of text')
  _fill(database)
  with database.without_triggers() as connection:
    connection.exec_driver_sql(
      f'UPDATE entries SET event = {value} WHERE sequence = 3'
    )
  with ledger_lib.Ledger.open(database.url) as book:
    for read in (
      lambda: book.spent('glyphs'),
      lambda: book.headroom('glyphs', _EVENT),
      lambda: _WRITES['charge'](book),
    ):
      with pytest.raises(errors.LedgerDamagedError, match='entry 3 '):
        read()
    assert len(book.entries(kind='lease')) == 2
    assert book.head()[0] == 7


@pytest.mark.parametrize(
  'details',
  [
    '{',
    '[]',
    '{}',
    '{"delta": 1e-05, "epsilon": "8"}',
    '{"delta": 1e-05, "epsilon": -8.0}',
    '{"delta": null, "epsilon": 8.0}',
  ],
)
def test_a_damaged_budget_is_named(database, details):
  _fill(database)
  with database.without_triggers() as connection:
    _run(
      connection,
      'UPDATE entries SET details = :details WHERE sequence = 1',
      details=details,
    )
  with ledger_lib.Ledger.open(database.url) as book:
    for read in (
      lambda: book.budget('glyphs'),
      lambda: book.spent('glyphs'),
      lambda: book.set_budget('glyphs', guarantee.Budget(9.0, 1e-5)),
      lambda: _WRITES['charge'](book),
      book.entries,
    ):
      with pytest.raises(errors.LedgerDamagedError, match='entry 1 '):
        read()
    assert any('entry 1 of the' in problem for problem in book.verify())
    assert book.head()[0] == 7


@pytest.mark.parametrize(
  ('sequence', 'column', 'value'),
  [(2, 'details', '{'), (4, 'event', '{'), (4, 'details', '"text"')],
)
def test_a_damaged_entry_in_a_chain_made_anew_is_a_problem(
  database, sequence, column, value
):
  _fill(database)
  with database.without_triggers() as connection:
    edited = {column: value}
    if column == 'event':
      edited['event_digest'] = events.text_digest(value)
    connection.execute(
      store.entries.update()
      .where(store.entries.c.sequence == sequence)
      .values(**edited)
    )
    _rechain(connection, first=1, change={})
  if database.mirror is not None:
    database.mirror.unlink()
  with ledger_lib.Ledger.open(database.url) as book:
    problems = book.verify()
  assert any(f'entry {sequence} of the ledger' in text for text in problems)


@pytest.mark.parametrize('value', ['{', '["data_digest"]'])
def test_damaged_details_that_name_a_data_set_are_named(database, value):
  with ledger_lib.Ledger.open(database.url) as book:
    for number in range(2):
      book.charge(
        population='glyphs',
        release='quick/model',
        run='quick',
        event=_EVENT,
        round_number=number,
        details={'data_digest': 'd' * 64},
      )
  with database.without_triggers() as connection:
    _run(
      connection,
      'UPDATE entries SET details = :details WHERE sequence = 2',
      details=f'{value} "data_digest"' if value == '{' else value,
    )
  with ledger_lib.Ledger.open(database.url) as book:
    with pytest.raises(errors.LedgerDamagedError, match='entry 2 '):
      book.check_data_set('other', 'd' * 64)


def test_entries_cannot_be_changed_by_accident(database):
  _fill(database)
  statements = ['UPDATE entries SET attempt = 9', 'DELETE FROM entries']
  if database.kind != 'sqlite':
    statements.append('TRUNCATE entries')
  for statement in statements:
    with pytest.raises(sa.exc.DBAPIError, match='append-only'):
      with database.tamper() as connection:
        _run(connection, statement)
  assert _problems(database) == []


def test_a_lost_mirror_is_found(any_database):
  _fill(any_database)
  if any_database.mirror is None:
    assert _problems(any_database) == []
    return
  any_database.mirror.unlink()
  assert 'was removed' in _problems(any_database)[0]
