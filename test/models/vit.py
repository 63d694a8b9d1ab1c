"""A vision transformer without weights, for the benchmarks: writes vit.onnx (PyTorch 2.15, onnx 1.23.2, onnxscript).

    python vit.py

Images of 64 x 64 in patches of 8 x 8, six blocks of width 384 with six heads, 1,000 classes: 11.1 million parameters (Dosovitskiy et al.,
arXiv:2010.11929, with the mean of all patches in place of a class token). The graph's weights are references into a file that does not exist;
`sheaf init` makes some. pytorch_baseline.py trains the same class.
"""
import pathlib

import torch
from torch.nn.functional import cross_entropy

from shakespeare import Block

SIDE, PATCH, WIDTH, HEADS, BLOCKS, CLASSES = 64, 8, 384, 6, 6, 1000


class ViT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = torch.nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.positions = torch.nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, WIDTH))
        self.blocks = torch.nn.Sequential(*(Block(WIDTH, HEADS, False, "none") for _ in range(BLOCKS)))
        self.ln, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x, labels):
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return cross_entropy(self.head(self.ln(self.blocks(tokens)).mean(1)), labels)


def main():
    from pack import pack_alone
    path = pathlib.Path(__file__).parent / "vit.onnx"
    inputs = (torch.randn(4, 3, SIDE, SIDE), torch.randint(0, CLASSES, (4,)))
    torch.onnx.export(ViT().train(), inputs, path, dynamo=True, optimize=False, external_data=False, input_names=["x", "labels"],
                      output_names=["loss"], verbose=False, dynamic_shapes=({0: "batch"}, {0: "batch"}))
    pack_alone(path)


if __name__ == "__main__":
    main()
