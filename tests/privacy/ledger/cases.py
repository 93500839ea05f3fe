"""A round of a run, charged."""

from dp_accounting import dp_event

EVENT = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))


def charge(book, number=0, **changes):
  values = {
    'population': 'glyphs',
    'release': 'quick/model',
    'run': 'quick',
    'event': EVENT,
    'round_number': number,
  }
  return book.charge(**(values | changes))
