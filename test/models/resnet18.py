"""ResNet-18 without weights, for the benchmarks: writes resnet-18.onnx (PyTorch 2.15, onnx 1.23.2, onnxscript).

    python resnet18.py

The network of the paper on images of 64 x 64, with 1,000 classes: 11.7 million parameters. The graph's weights are references into a file that does not exist; `sheaf init` makes some. pytorch_baseline.py trains the same class.
"""
import pathlib

import torch
from torch.nn.functional import cross_entropy, max_pool2d

CLASSES, SIDE = 1000, 64


class Block(torch.nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(outside)
        self.conv2 = torch.nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(outside)
        self.down = None
        if stride > 1:
            self.down = torch.nn.Sequential(torch.nn.Conv2d(inside, outside, 1, stride, bias=False),
                                            torch.nn.BatchNorm2d(outside))

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.down is None else self.down(x)))


class ResNet18(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        self.layers = torch.nn.Sequential(*(block for inside, outside in zip(widths, widths[1:]) for block in (
            Block(inside, outside, 1 if inside == outside else 2), Block(outside, outside, 1))))
        self.fc = torch.nn.Linear(512, CLASSES)

    def forward(self, x, labels):
        x = max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, padding=1)
        return cross_entropy(self.fc(self.layers(x).mean((2, 3))), labels)


def main():
    from pack import pack_alone
    path = pathlib.Path(__file__).parent / "resnet-18.onnx"
    inputs = (torch.randn(4, 3, SIDE, SIDE), torch.randint(0, CLASSES, (4,)))
    torch.onnx.export(ResNet18().train(), inputs, path, dynamo=True, optimize=False, external_data=False,
                      input_names=["x", "labels"], output_names=["loss"], verbose=False, dynamic_shapes=({0: "batch"}, {0: "batch"}))
    pack_alone(path)


if __name__ == "__main__":
    main()
