"""The two networks in PyTorch, with a linear softmax head; NCHW."""

import torch
from torch import nn
from torch.nn import functional

_STAGES = (
  (1, 16, 1, 1),
  (6, 24, 2, 2),
  (6, 32, 3, 2),
  (6, 64, 4, 2),
  (6, 96, 3, 1),
  (6, 160, 3, 2),
  (6, 320, 1, 1),
)


class Classifier(nn.Module):
  """Backbone and head, with the two methods that pfl asks for."""

  def __init__(self, work):
    super().__init__()
    if work.model == 'lenet':
      self.backbone = lenet(work)
    else:
      self.backbone = mobilenet_v2(work)
    self.head = nn.Linear(work.embedding_dim, work.classes, bias=False)

  def forward(self, images):
    return self.head(self.backbone(images))

  def loss(self, images, labels, is_eval=False):
    del is_eval
    return functional.cross_entropy(self(images), labels)

  @torch.no_grad()
  def metrics(self, images, labels, is_eval=True):
    del images, labels, is_eval
    return {}


def lenet(work):
  height, width, colours = work.image_shape
  return nn.Sequential(
    nn.Conv2d(colours, 32, 5, padding=2),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 5, padding=2),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(64 * (height // 4) * (width // 4), work.embedding_dim),
  )


class _InvertedResidual(nn.Module):
  def __init__(self, inputs, expansion, outputs, stride):
    super().__init__()
    wide = inputs * expansion
    parts = []
    if expansion > 1:
      parts += [nn.Conv2d(inputs, wide, 1, bias=False), *_norm_relu(wide)]
    parts += [
      nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
      *_norm_relu(wide),
      nn.Conv2d(wide, outputs, 1, bias=False),
      nn.GroupNorm(2, outputs, eps=1e-3),
    ]
    self.parts = nn.Sequential(*parts)
    self.adds = stride == 1 and inputs == outputs

  def forward(self, images):
    result = self.parts(images)
    return images + result if self.adds else result


def _norm_relu(channels):
  return nn.GroupNorm(2, channels, eps=1e-3), nn.ReLU6(inplace=True)


def mobilenet_v2(work):
  parts = [
    nn.Conv2d(work.image_shape[-1], 32, 3, 2, 1, bias=False),
    *_norm_relu(32),
  ]
  channels = 32
  for expansion, outputs, repeats, stride in _STAGES:
    for repeat in range(repeats):
      step = stride if repeat == 0 else 1
      parts.append(_InvertedResidual(channels, expansion, outputs, step))
      channels = outputs
  parts += [
    nn.Conv2d(channels, 1280, 1, bias=False),
    *_norm_relu(1280),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(1280, work.embedding_dim),
  ]
  return nn.Sequential(*parts)
