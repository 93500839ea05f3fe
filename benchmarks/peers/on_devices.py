"""The round on devices of TensorFlow: `--variant GPU:0` or `CPU:0,CPU:1`."""

from benchmarks.peers import ours
from benchmarks.peers import work as work_lib
from launch import environment


def prepare(work, options, stack):
  environment.prepare()
  import tensorflow as tf

  from tff_dpemb.training.execution import accelerator

  devices = options.variant.split(',')
  cpus = sum(device.startswith('CPU') for device in devices)
  if cpus > 1:
    tf.config.set_logical_device_configuration(
      tf.config.list_physical_devices('CPU')[0],
      [tf.config.LogicalDeviceConfiguration()] * cpus,
    )
  iterative, data = ours.build(work)
  slots = 1 if cpus else 2  # Two slots of one CPU share its cores already.
  stack.enter_context(accelerator.open(devices=devices, slots_per_device=slots))
  return ours.rounds(iterative, data)


if __name__ == '__main__':
  work_lib.serve(prepare)
