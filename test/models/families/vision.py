"""Images, audio and points."""
import numpy as np
import torch
import transformers as T
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, relu, silu

from family import ROWS, Own, Run, classed, family, images, noise, tokens, without_dropout

# The dynamo exporter's optimizer folds BatchNorm into what is before it.
BATCH_NORM = dict(tolerance=1e-3, options=("--batch-norm", "sync"), exporters=("raw", "torchscript"))


def classifier(kind, config):
    config.num_labels = 4
    return Own(kind(without_dropout(config)), "pixel_values", "labels")


def pixels(rng):
    data = images(rng)
    return {"pixel_values": data["x"], "labels": data["labels"]}


@family(pixels)
def vit():
    return classifier(T.ViTForImageClassification, T.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4))


@family(pixels)
def beit():
    return classifier(T.BeitForImageClassification, T.BeitConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4,
        use_relative_position_bias=True, out_indices=[1, 2], attn_implementation="eager"))


@family(pixels)
def swin():
    return classifier(T.SwinForImageClassification, T.SwinConfig(
        image_size=16, patch_size=2, embed_dim=16, depths=[2, 1], num_heads=[2, 4], window_size=4, mlp_ratio=2.0, attn_implementation="eager"))


@family(pixels)
def convnext():
    return classifier(T.ConvNextForImageClassification, T.ConvNextConfig(
        hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], image_size=16, patch_size=2))


@family(pixels, optimizer="sgd", **BATCH_NORM)
def resnet():
    return classifier(T.ResNetForImageClassification, T.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24], depths=[1, 2, 1], layer_type="basic"))


@family(pixels, **BATCH_NORM)
def efficientnet():
    return classifier(T.EfficientNetForImageClassification, T.EfficientNetConfig(
        image_size=16, in_channels=[32, 8], out_channels=[8, 12], kernel_sizes=[3, 5], strides=[1, 2], num_block_repeats=[1, 2],
        expand_ratios=[1, 4], depthwise_padding=[], hidden_dim=1280, width_coefficient=1.0, depth_coefficient=1.0, depth_divisor=4))


class SqueezeExcite(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x):
        return x * nn.functional.hardsigmoid(self.up(relu(self.down(nn.functional.adaptive_avg_pool2d(x, 1)))))


class Inverted(nn.Module):
    """MobileNetV3's block: expand, depthwise convolution, squeeze and excite, project."""

    def __init__(self, ins, inner, outs, kernel, stride):
        super().__init__()
        self.same = ins == outs and stride == 1
        self.layers = nn.Sequential(
            nn.Conv2d(ins, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.Hardswish(),
            nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.Hardswish(),
            SqueezeExcite(inner), nn.Conv2d(inner, outs, 1, bias=False), nn.BatchNorm2d(outs))

    def forward(self, x):
        return x + self.layers(x) if self.same else self.layers(x)


@family(images, **BATCH_NORM)
def mobilenet():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(), Inverted(8, 16, 8, 3, 1), Inverted(8, 32, 16, 5, 2),
        Inverted(16, 32, 16, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 32), nn.Hardswish(), nn.Linear(32, 4))
    return Run(net, lambda net, x, labels: cross_entropy(net(x), labels))


class UNet(nn.Module):
    """Two levels down by strided convolutions and up by transposed ones, joined by skips."""

    def __init__(self, width=8):
        super().__init__()
        block = lambda ins, outs: nn.Sequential(nn.Conv2d(ins, outs, 3, padding=1), nn.GroupNorm(4, outs), nn.SiLU())
        self.first, self.second, self.middle = block(3, width), block(width, 2 * width), block(2 * width, 2 * width)
        self.down1, self.down2 = nn.Conv2d(width, width, 3, 2, 1), nn.MaxPool2d(2)
        self.up2, self.up1 = nn.ConvTranspose2d(2 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.back2, self.back1, self.out = block(4 * width, 2 * width), block(2 * width, width), nn.Conv2d(width, 3, 1)

    def forward(self, x, target):
        a = self.first(x)
        b = self.second(self.down1(a))
        c = self.middle(self.down2(b))
        b = self.back2(torch.cat([self.up2(c), b], 1))
        return mse_loss(self.out(self.back1(torch.cat([self.up1(b), a], 1))), target)


def denoising(rng):
    x = noise(rng, 3, 16, 16)
    return {"x": x, "target": np.roll(x, 1, 3)}


@family(denoising)
def unet():
    return UNet()


class DiTBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.modulation(c).unsqueeze(1).chunk(6, -1)
        y = self.norm1(x) * (1 + s1) + b1
        x = x + g1 * self.attention(y, y, y, need_weights=False)[0]
        return x + g2 * self.mlp(self.norm2(x) * (1 + s2) + b2)


class DiT(nn.Module):
    """Diffusion transformer: patches, time and class through adaptive layer norms, the noise as target."""

    def __init__(self, width=32, heads=4, channels=4, size=8, patch=2):
        super().__init__()
        self.patch, self.grid, self.channels = patch, size // patch, channels
        self.embed, self.classes = nn.Conv2d(channels, width, patch, patch), nn.Embedding(5, width)
        self.time = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.position = nn.Parameter(torch.randn(1, self.grid ** 2, width) * 0.02)
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(2))
        self.norm, self.modulation = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, patch * patch * channels)

    def forward(self, x, t, y, target):
        frequencies = torch.exp(-torch.arange(16, dtype=x.dtype, device=x.device) * (9.21 / 16))
        angles = t.to(x.dtype).unsqueeze(1) * frequencies
        c = self.time(torch.cat([angles.cos(), angles.sin()], 1)) + self.classes(y)
        h = self.embed(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            h = block(h, c)
        shift, scale = self.modulation(silu(c)).unsqueeze(1).chunk(2, -1)
        h = self.out(self.norm(h) * (1 + scale) + shift)
        h = h.unflatten(1, (self.grid, self.grid)).unflatten(3, (self.patch, self.patch, self.channels))
        h = torch.einsum("nhwpqc->nchpwq", h).flatten(4, 5).flatten(2, 3)
        return mse_loss(h, target)


def diffusion(rng):
    clean, eps, t = noise(rng, 4, 8, 8), noise(rng, 4, 8, 8), rng.integers(0, 1000, ROWS)
    part = (np.round(256 * t / 1000) / 256).astype(np.float32).reshape(-1, 1, 1, 1)
    return {"x": (1 - part) * clean + part * eps, "t": t, "y": rng.integers(0, 5, ROWS), "target": eps}


@family(diffusion)
def dit():
    return DiT()


class Vae(nn.Module):
    """The draws of the latent are data, so that runs can be compared."""

    def __init__(self, latent=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.ELU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ELU(), nn.Flatten(),
                                     nn.Linear(256, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 256), nn.ELU(), nn.Unflatten(1, (16, 4, 4)),
                                     nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ELU(), nn.ConvTranspose2d(8, 1, 3, 2, 1, 1))

    def forward(self, x, eps):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        log_variance = log_variance.clamp(-10, 10)
        logits = self.decoder(mean + torch.exp(0.5 * log_variance) * eps)
        likelihood = nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="sum") / x.shape[0]
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return (likelihood + divergence) / x[0].numel()


@family(lambda rng: {"x": (noise(rng, 1, 16, 16) > 0).astype(np.float32), "eps": noise(rng, 8)})
def vae():
    return Vae()


class Mixer(nn.Module):
    def __init__(self, width=32, patches=16):
        super().__init__()
        mlp = lambda size, inner: nn.Sequential(nn.Linear(size, inner), nn.GELU(), nn.Linear(inner, size))
        self.embed, self.head, self.norm = nn.Conv2d(3, width, 4, 4), nn.Linear(width, 4), nn.LayerNorm(width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.mlps = nn.ModuleList(mlp(*s) for s in [(patches, 32), (width, 64)] * 2)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        for token, channel, a, b in zip(self.norms[::2], self.norms[1::2], self.mlps[::2], self.mlps[1::2]):
            x = x + a(token(x).transpose(1, 2)).transpose(1, 2)
            x = x + b(channel(x))
        return self.head(self.norm(x).mean(1))


@family(images, loss=("cross_entropy(logits)", cross_entropy))
def mlp_mixer():
    return Run(Mixer(), lambda net, x: net(x))


class Segmenter(nn.Module):
    """Down by strides, up by bilinear and nearest resizing; labels of 255 do not count."""

    def __init__(self, classes=4):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 12, 3, 2, 1), nn.Conv2d(12, 24, 3, 2, 2, dilation=2)
        self.side, self.head, self.norm = nn.Conv2d(12, 24, 1), nn.Conv2d(24, classes, 1), nn.InstanceNorm2d(24, affine=True)

    def forward(self, x, labels):
        a = relu(self.down1(x))
        b = relu(self.norm(self.down2(a)))
        b = nn.functional.interpolate(b, scale_factor=2.0, mode="nearest") + self.side(a)
        out = nn.functional.interpolate(self.head(b), size=x.shape[2:], mode="bilinear", align_corners=False)
        return cross_entropy(out, labels, ignore_index=255)


def segments(rng):
    x = noise(rng, 3, 16, 16)
    labels = (x[:, 0] > 0).astype(np.int64) + 2 * (x[:, 1] > 0)
    return {"x": x, "labels": np.where(rng.random(labels.shape) < 0.1, 255, labels)}


@family(segments)
def segmentation():
    return Segmenter()


@family(pixels, **BATCH_NORM)
def mobilevit():
    return classifier(T.MobileViTForImageClassification, T.MobileViTConfig(
        image_size=32, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[4, 8, 8, 8, 8, 8, 16], num_attention_heads=2, mlp_ratio=2.0))


class Video(nn.Module):
    """Convolutions over time and space."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.AvgPool3d(2),
                                    nn.Conv3d(8, 16, 3, 2, 1), nn.LeakyReLU(0.1), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 4))

    def forward(self, x, labels):
        return cross_entropy(self.layers(x), labels)


@family(lambda rng: classed(rng, 4, 1, 4, 8, 8), optimizer="sgd")
def video():
    return Video()


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers, last = [], 3
        for width in (16, 32):
            layers += [nn.Conv1d(last, width, 1), nn.BatchNorm1d(width), nn.ReLU()]
            last = width
        self.points, self.head = nn.Sequential(*layers), nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x, labels):
        return cross_entropy(self.head(self.points(x).max(2).values), labels)


@family(lambda rng: classed(rng, 4, 3, 24), **BATCH_NORM)
def pointnet():
    return PointNet()


class DeepSets(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 24))
        self.head = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, x, labels):
        y = self.points(x.transpose(1, 2))
        return cross_entropy(self.head(torch.cat([y.amax(1), torch.logsumexp(y, 1)], 1)), labels)


@family(lambda rng: classed(rng, 4, 3, 24))
def deep_sets():
    return DeepSets()


class Causal(nn.Module):
    def __init__(self, ins, outs, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(ins, outs, 3, padding=self.pad, dilation=dilation))
        self.skip = nn.Conv1d(ins, outs, 1) if ins != outs else nn.Identity()

    def forward(self, x):
        return relu(relu(self.conv(x)[..., :-self.pad]) + self.skip(x))


@family(lambda rng: {"x": noise(rng, 2, 24), "target": noise(rng, 1, 24)}, exporters=("raw", "optimized"))
def tcn():
    net = nn.Sequential(Causal(2, 16, 1), Causal(16, 16, 2), Causal(16, 16, 4), nn.Conv1d(16, 1, 1))
    return Run(net, lambda net, x, target: nn.functional.smooth_l1_loss(net(x), target))


def audio(rng, length=200):
    data = classed(rng, 4, length)
    return {"input_values": data["x"], "labels": data["labels"]}


@family(audio)
def wav2vec2():
    config = T.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16), conv_stride=(5, 2),
        conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, num_labels=4,
        apply_spec_augment=False, classifier_proj_size=16)
    return Own(T.Wav2Vec2ForSequenceClassification(without_dropout(config)), "input_values", "labels")


def speech(rng):
    ids = tokens(rng, 8)
    return {"input_features": noise(rng, 8, 32), "decoder_input_ids": np.roll(ids, 1, 1), "labels": ids}


@family(speech, freeze="encoder.embed_positions")  # a sinusoid that `transformers` does not train
def whisper():
    config = T.WhisperConfig(
        vocab_size=64, num_mel_bins=8, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=16, max_target_positions=16,
        pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=2)
    return Own(T.WhisperForConditionalGeneration(without_dropout(config)), "input_features", "decoder_input_ids", "labels",
               use_cache=False)


def pairs(rng):
    return {"input_ids": tokens(rng, 8), "pixel_values": noise(rng, 3, 16, 16)}


@family(pairs, ranks=(1,))  # its loss compares every row of the batch with every other
def clip():
    text = dict(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
                max_position_embeddings=16, eos_token_id=2, bos_token_id=1, pad_token_id=0)
    vision = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4)
    config = T.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    return Own(T.CLIPModel(without_dropout(config)), "input_ids", "pixel_values", return_loss=True)


class Conformer(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        half = lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 48), nn.SiLU(), nn.Linear(48, width))
        self.front, self.first, self.last = nn.Conv1d(8, width, 3, 2, 1), half(), half()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 4, batch_first=True)
        self.before, self.after = nn.LayerNorm(width), nn.Conv1d(width, width, 1)
        self.gate = nn.Sequential(nn.Conv1d(width, 2 * width, 1), nn.GLU(1))
        self.depth = nn.Sequential(nn.Conv1d(width, width, 5, padding=2, groups=width), nn.GroupNorm(1, width), nn.SiLU())
        self.head = nn.Linear(width, 4)

    def forward(self, x, labels):
        x = self.front(x).transpose(1, 2)
        x = x + 0.5 * self.first(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.after(self.depth(self.gate(self.before(x).transpose(1, 2)))).transpose(1, 2)
        x = x + 0.5 * self.last(x)
        return cross_entropy(self.head(x).mean(1), labels)


@family(lambda rng: classed(rng, 4, 8, 32))
def conformer():
    return Conformer()
