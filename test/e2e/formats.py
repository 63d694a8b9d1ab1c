"""The file formats of training runs, read and written with the standard library alone."""
import array
import json
import math
import struct

_CODES = {"F32": "f", "F64": "d", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "BOOL": "B", "BF16": "H", "F16": "H"}


class Tensor:
    """dtype is safetensors' name of it ("F32"), values a flat array in row-major order."""

    def __init__(self, dtype, shape, values):
        self.dtype, self.shape, self.values = dtype, tuple(shape), values

    def transposed(self):
        rows, columns = self.shape
        values = array.array(self.values.typecode)
        for c in range(columns):
            values.extend(self.values[c::columns])
        assert len(values) == rows * columns
        return Tensor(self.dtype, (columns, rows), values)


def read_safetensors(path):
    """{name: Tensor}, in the file's order."""
    with open(path, "rb") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(length))
        data = f.read()
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = array.array(_CODES[entry["dtype"]])
        values.frombytes(data[begin:end])
        if len(values) != math.prod(entry["shape"]):
            raise ValueError(f"{path}: {name} has {len(values)} values for shape {entry['shape']}")
        tensors[name] = Tensor(entry["dtype"], entry["shape"], values)
    return tensors


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + len(tensor.values) * tensor.values.itemsize
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            f.write(tensor.values.tobytes())


def write_npy(path, descr, shape, payload):
    """descr is NumPy's type string ("<f4", "<i8"), payload the bytes in row-major order."""
    text = repr({"descr": descr, "fortran_order": False, "shape": tuple(shape)}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + payload)


def read_log(path):
    """(steps, events) of a run's log: the objects that carry `step` and no `event`, and those that carry `event`."""
    with open(path, encoding="utf-8") as f:
        objects = [json.loads(line) for line in f]
    return [o for o in objects if "event" not in o], [o for o in objects if "event" in o]


def norm(values):
    return math.sqrt(math.fsum(v * v for v in values))


def relative_difference(a, b):
    """|a - b| / |b| in the Euclidean norm, over two flat arrays of one length."""
    size = norm(b)
    difference = math.sqrt(math.fsum((x - y) * (x - y) for x, y in zip(a, b)))
    return difference / size if size else difference


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def protobuf_fields(data):
    """(number, value) of a protobuf message: varints, 8 and 4 bytes as they are, and bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        size = {0: 0, 1: 8, 2: 0, 5: 4}[key & 7]
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = varint() if key & 7 == 2 else size
        yield key >> 3, data[at:at + size]
        at += size


def read_events(path):
    """A TensorBoard event file: [(step, {tag: number}, the other fields)], a record each; checks every checksum."""
    data, at, records = path.read_bytes(), 0, []
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        body = data[at + 12:at + 12 + length]
        for bytes_, found in ((data[at:at + 8], crc), (body, struct.unpack_from("<I", data, at + 12 + length)[0])):
            value = crc32c(bytes_)
            if found != ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF:
                raise ValueError(f"{path}: a checksum at byte {at} is wrong")
        at += 16 + length
        event, scalars = dict(protobuf_fields(body)), {}
        for _, value in protobuf_fields(event.pop(5, b"")):
            entry = dict(protobuf_fields(value))
            scalars[entry[1].decode()] = struct.unpack("<f", entry[2])[0]
        records.append((event.get(2, 0), scalars, event))
    return records
