"""Writes evaluation.json: what ONNX Runtime computes of the first rows of each model's data, row by row.

    python3 test/models/evaluation.py        # needs onnx, onnxruntime, safetensors and numpy

For each model the loss of every row (the mean over its labels, from ONNX Runtime's logits in double precision), how many of
its labels have the largest logit, and of gpt2-tiny some logits: [row, token, class, value]. `resnet` normalizes by the running
statistics in the graph, `resnet-trained` is the same with weights and statistics of PyTorch's 50 steps (norms/export.py).
"""
import json
import pathlib

import numpy
import onnx
import onnxruntime
import safetensors.numpy

from unpack import unpack

MODELS, HERE = unpack(), pathlib.Path(__file__).parent
ROWS = 45  # no multiple of a batch
DATA = {"mlp": ("mlp", "mlp", "x"), "cnn": ("cnn", "cnn", "x"), "gpt2-tiny": ("gpt2-tiny", "gpt2-tiny", "input_ids"),
        "resnet": ("norms/resnet", "cnn", "x"),
        "resnet-trained": ("norms/resnet", "cnn", "x", "norms/resnet.sync.safetensors")}


def evaluate(name, data, argument, weights=None):
    model = onnx.load(MODELS / f"{name}.onnx")
    if weights:
        tensors = safetensors.numpy.load_file(MODELS / weights)
        initializers = {tensor.name: tensor for tensor in model.graph.initializer}
        for tensor, values in tensors.items():
            initializers[tensor].CopyFrom(onnx.numpy_helper.from_array(values, tensor))
    logits = next(node.input[0] for node in model.graph.node if node.op_type == "SoftmaxCrossEntropyLoss")
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(logits))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    x = numpy.load(MODELS / f"{data}.{argument}.npy")[:ROWS]
    labels = numpy.load(MODELS / f"{data}.labels.npy")[:ROWS]
    losses, correct, sample = [], [], []
    for row in range(ROWS):
        found = session.run([logits], {argument: x[row : row + 1], "labels": labels[row : row + 1]})[0]
        classes = found.shape[-1]
        found, wanted = found.reshape(-1, classes).astype(numpy.float64), labels[row].reshape(-1)
        largest = found.max(axis=1)
        own = found[numpy.arange(len(wanted)), wanted]
        losses.append(float(numpy.mean(numpy.log(numpy.exp(found - largest[:, None]).sum(axis=1)) + largest - own)))
        correct.append(int((own >= largest).sum()))
        if row in (0, 7, 8, ROWS - 1):
            for token in sorted({0, len(wanted) - 1}):
                sample += [[row, token, c, float(found[token, c])] for c in (0, 1, classes - 1)]
    return {"labels_per_row": labels[0].size, "losses": losses, "correct": correct, "logits": sample}


text = json.dumps({name: evaluate(*where) for name, where in DATA.items()})
(HERE / "evaluation.json").write_text(text + "\n")
