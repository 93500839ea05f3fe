"""What is refused before anything is trained."""

import pytest
from dp_accounting import dp_event

from launch.steps import data
from tff_dpemb.data import user_store
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib


def test_a_missing_store_is_named_at_the_start(open_without_public, tmp_path):
  run = open_without_public(pretraining=False)
  data.data(run)
  (tmp_path / 'data/test').rename(tmp_path / 'data/moved')
  with pytest.raises(user_store.StoreError, match='data/test'):
    data.data(open_without_public(pretraining=False, splits=()))


def test_a_plan_that_breaks_a_rule_is_refused_before_pretraining(
  open_without_public,
):
  run = open_without_public(pretraining=False)
  with pytest.raises(guarantee.PlanError, match='users_per_round'):
    data.check_plan(run)  # For two users.


def test_data_of_another_population_are_refused_and_no_budget_is_set(
  open_without_public,
):
  run = open_without_public(pretraining=False, population='fresh')
  data.check_population(run)
  digest = run.private.digest
  with ledger_lib.Ledger.open(run.paths.ledger_url) as ledger:
    ledger.charge(
      population='faces',
      release='other/model',
      run='other',
      event=dp_event.GaussianDpEvent(4.0),
      details={'data_digest': digest},
    )
  with pytest.raises(errors.LedgerError, match="population 'faces'"):
    data.check_population(run)
  data.check_population(
    open_without_public(pretraining=False, population='faces')
  )
