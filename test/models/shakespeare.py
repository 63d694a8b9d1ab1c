"""A GPT over bytes without weights, for the demo and for `make converge`: writes shakespeare.onnx (PyTorch 2.15, onnx 1.23.2, onnxscript).

    python shakespeare.py

Four blocks of width 128 with four heads, 128 bytes of context, 0.8 million parameters. The graph's outputs are the loss and the logits, and its weights
are references into a file that does not exist; `sheaf init` makes some. shakespeare.txt is the text that Andrej Karpathy calls tiny Shakespeare
(char-rnn): the first parts of his plays, in the public domain.
"""
import pathlib

import torch
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

BYTES, CONTEXT, WIDTH, HEADS, BLOCKS = 256, 128, 128, 4, 4


class Block(torch.nn.Module):
    """Attention and a perceptron, each after a normalization and added to what it reads (also of vit.py)."""
    def __init__(self, width, heads, causal, gelu):
        super().__init__()
        self.heads, self.causal, self.gelu = heads, causal, gelu
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention, self.projection = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        heads = self.attention(self.ln_1(x)).unflatten(-1, (3, self.heads, x.shape[-1] // self.heads)).permute(2, 0, 3, 1, 4)
        x = x + self.projection(scaled_dot_product_attention(*heads.unbind(0), is_causal=self.causal).transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.ln_2(x)), approximate=self.gelu))


class GPT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(BYTES, WIDTH), torch.nn.Embedding(CONTEXT, WIDTH)
        self.blocks = torch.nn.Sequential(*(Block(WIDTH, HEADS, True, "tanh") for _ in range(BLOCKS)))
        self.ln, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, BYTES, bias=False)

    def forward(self, input_ids, labels):
        logits = self.head(self.ln(self.blocks(self.tokens(input_ids) + self.positions.weight)))
        return cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def main():
    from pack import pack_alone
    path = pathlib.Path(__file__).parent / "shakespeare.onnx"
    inputs = torch.randint(0, BYTES, (2, 4, CONTEXT))
    torch.onnx.export(GPT().train(), tuple(inputs), path, dynamo=True, optimize=False, external_data=False, input_names=["input_ids", "labels"],
                      output_names=["loss", "logits"], verbose=False, dynamic_shapes=({0: "batch"}, {0: "batch"}))
    pack_alone(path)


if __name__ == "__main__":
    main()
