"""The `synthesize` command: publish private synthetic embeddings of a run."""

from launch.commands import run

synthesize = run.stage_command(
  'synthesize',
  ('publishing:synthesize',),
  'Publish labelled synthetic embeddings of the private users.\n\nEmbeds the'
  ' private images with the exported model, fits a Gaussian mixture for each'
  ' declared class by private clustering, samples from it. Charged to the'
  ' ledger before noise is drawn; an interrupted release resumes.\n\n'
  '\b\nExample:\n  dpemb synthesize launch/configs/quickstart.toml\n',
)
