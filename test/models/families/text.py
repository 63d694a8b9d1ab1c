"""Language models, all but one as `transformers` has them."""
import torch
import transformers as T
from torch import nn
from torch.nn.functional import cross_entropy, silu, softmax

from family import Own, Run, family, masked_text, noise, text, text_classes, tokens, translation, without_dropout

SIZES = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
             max_position_embeddings=32)
LLAMA_LIKE = dict(SIZES, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=1)


def causal(kind, config):
    return Own(kind(without_dropout(config)), "input_ids", "labels", use_cache=False)


@family(masked_text)
def bert():
    return Own(T.BertForMaskedLM(without_dropout(T.BertConfig(**SIZES))), "input_ids", "attention_mask", "labels")


@family(masked_text)
def roberta():
    config = T.RobertaConfig(**{**SIZES, "max_position_embeddings": 40}, pad_token_id=0)
    return Own(T.RobertaForMaskedLM(without_dropout(config)), "input_ids", "attention_mask", "labels")


@family(text_classes)
def distilbert():
    config = T.DistilBertConfig(vocab_size=64, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=32, num_labels=4)
    return Own(T.DistilBertForSequenceClassification(without_dropout(config)), "input_ids", "attention_mask", "labels")


def replaced_text(rng):
    ids = tokens(rng)  # no padding: PyTorch does not train the row of padding_idx, which a graph cannot say
    labels = (rng.random(ids.shape) < 0.3).astype("int64")
    return {"input_ids": (ids + 7 * labels - 3) % 61 + 3, "labels": labels}


@family(replaced_text)
def electra():
    config = T.ElectraConfig(**SIZES, embedding_size=16)
    return Own(T.ElectraForPreTraining(without_dropout(config)), "input_ids", "labels")


@family(text_classes, optimizer="sgd")
def albert():
    config = T.AlbertConfig(**SIZES, embedding_size=16, num_labels=4)
    return Own(T.AlbertForSequenceClassification(without_dropout(config)), "input_ids", "attention_mask", "labels")


@family(masked_text, exporters=("raw", "torchscript"))
def deberta():
    config = T.DebertaV2Config(**SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8)
    return Own(T.DebertaV2ForMaskedLM(without_dropout(config)), "input_ids", "attention_mask", "labels")


@family(text, optimizer="sgd")  # AdamW makes PyTorch's own f32 run differ by 1e-4
def opt():
    config = T.OPTConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
                         max_position_embeddings=32, word_embed_proj_dim=32)
    return causal(T.OPTForCausalLM, config)


@family(text)
def bloom():
    return causal(T.BloomForCausalLM, T.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4))


@family(text)
def phi():
    return causal(T.PhiForCausalLM, T.PhiConfig(**SIZES))


@family(text, exporters=("raw", "optimized"))
def gpt_neox():
    return causal(T.GPTNeoXForCausalLM, T.GPTNeoXConfig(**SIZES))


@family(text)
def gptj():
    config = T.GPTJConfig(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, n_inner=64, rotary_dim=4)
    return causal(T.GPTJForCausalLM, config)


@family(text)
def falcon():
    config = T.FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    return causal(T.FalconForCausalLM, config)


@family(text)
def qwen2():
    return causal(T.Qwen2ForCausalLM, T.Qwen2Config(**LLAMA_LIKE))


@family(text)
def qwen3():
    return causal(T.Qwen3ForCausalLM, T.Qwen3Config(**LLAMA_LIKE, head_dim=8))


@family(text)
def gemma():
    return causal(T.GemmaForCausalLM, T.GemmaConfig(**LLAMA_LIKE, head_dim=16))


@family(text)
def gemma3():
    return causal(T.Gemma3ForCausalLM, T.Gemma3TextConfig(**LLAMA_LIKE, head_dim=16, sliding_window=4,
                                                          layer_types=["sliding_attention", "full_attention"]))


@family(text)
def mixtral():
    return causal(T.MixtralForCausalLM, T.MixtralConfig(**LLAMA_LIKE, num_local_experts=4, experts_implementation="batched_mm"))


def short_text(rng):
    return text(rng, 8)


@family(short_text)
def mamba():
    config = T.MambaConfig(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=2, conv_kernel=3, time_step_rank=4)
    return causal(T.MambaForCausalLM, config)


@family(translation, optimizer="sgd", exporters=("raw", "torchscript"))
def t5():
    config = T.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, relative_attention_num_buckets=8,
                        relative_attention_max_distance=16, decoder_start_token_id=0,
                        attn_implementation="eager")
    return Own(T.T5ForConditionalGeneration(without_dropout(config)), "input_ids", "decoder_input_ids", "labels", use_cache=False)


@family(translation)
def bart():
    config = T.BartConfig(vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                          decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32)
    return Own(T.BartForConditionalGeneration(without_dropout(config)), "input_ids", "decoder_input_ids", "labels", use_cache=False)


class Experts(nn.Module):
    """Dense mixture of experts: every expert sees every token, and all but the best two of a token weigh nothing."""

    def __init__(self, width=32, inner=32, count=4, chosen=2):
        super().__init__()
        self.router, self.chosen = nn.Linear(width, count, bias=False), chosen
        self.up = nn.Parameter(torch.randn(count, width, inner) * width ** -0.5)
        self.down = nn.Parameter(torch.randn(count, inner, width) * inner ** -0.5)

    def forward(self, x):
        weights = softmax(self.router(x), -1)
        best, index = weights.topk(self.chosen, -1)
        best = best / best.sum(-1, keepdim=True)
        gates = torch.zeros_like(weights).scatter(-1, index, best)
        hidden = silu(torch.einsum("bsd,edf->bsef", x, self.up))
        # Switch Transformer's balance loss: share of tokens times share of probability, by expert
        balance = ((gates > 0).to(weights.dtype).mean((0, 1)) * weights.mean((0, 1))).sum() * weights.shape[-1]
        return torch.einsum("bsef,efd,bse->bsd", hidden, self.down, gates), balance


class ExpertsLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.layers = nn.ModuleList(Experts() for _ in range(2))

    def forward(self, input_ids, labels):
        x, aux = self.embed(input_ids), 0
        for norm, layer in zip(self.norms, self.layers):
            y, balance = layer(norm(x))
            x, aux = x + y, aux + balance
        return cross_entropy(self.head(x[:, :-1]).flatten(0, 1), labels[:, 1:].flatten()) + 0.01 * aux


@family(text)
def experts():
    return ExpertsLM()


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.embed, self.layers = nn.Embedding(64, 24), kind(24, 24, batch_first=True, **options)
        self.head = nn.Linear(48 if options.get("bidirectional") else 24, 64)

    def forward(self, input_ids, labels):
        y, _ = self.layers(self.embed(input_ids))
        return cross_entropy(self.head(y).transpose(1, 2), labels)


def next_tokens(rng):
    ids = tokens(rng, 9)
    return {"input_ids": ids[:, :-1].copy(), "labels": ids[:, 1:].copy()}


@family(next_tokens, exporters=("raw", "torchscript"))
def lstm():
    return Recurrent(nn.LSTM, num_layers=2)


@family(next_tokens, exporters=("raw", "torchscript"))
def gru():
    return Recurrent(nn.GRU, bidirectional=True)


@family(next_tokens, optimizer="sgd")
def rnn():
    return Recurrent(nn.RNN, nonlinearity="relu")


class Selective(nn.Module):
    """Selective state space: h' = exp(dt A) h + dt B x, y = C h, with dt, B and C from the input, one step at a time."""

    def __init__(self, width=16, state=4):
        super().__init__()
        self.state, self.parts = state, nn.Linear(width, 2 * width + 2 * state)
        self.logs = nn.Parameter(torch.log(torch.arange(1, state + 1).float()).repeat(width, 1))
        self.skip, self.out = nn.Parameter(torch.ones(width)), nn.Linear(width, width)

    def forward(self, x):
        width, n = x.shape[-1], self.state
        gate, dt, b, c = self.parts(x).split([width, width, n, n], -1)
        dt = nn.functional.softplus(dt)
        decay = torch.exp(-dt.unsqueeze(-1) * self.logs.exp())
        add = (dt * x).unsqueeze(-1) * b.unsqueeze(2)
        h, ys = torch.zeros_like(add[:, 0]), []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + add[:, t]
            ys.append((h * c[:, t].unsqueeze(1)).sum(-1))
        return self.out((torch.stack(ys, 1) + self.skip * x) * silu(gate))


class StateSpace(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 16), nn.Linear(16, 64)
        self.norms, self.layers = nn.ModuleList(nn.RMSNorm(16) for _ in range(2)), nn.ModuleList(Selective() for _ in range(2))

    def forward(self, input_ids, labels):
        x = self.embed(input_ids)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


@family(next_tokens)
def state_space():
    return StateSpace()


class Builtin(nn.Module):
    """PyTorch's own encoder and decoder layers."""

    def __init__(self):
        super().__init__()
        sizes = dict(d_model=32, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True, norm_first=True)
        self.embed, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**sizes, activation="gelu"), 1, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), 1)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(8), persistent=False)

    def forward(self, input_ids, decoder_input_ids, labels):
        memory = self.encoder(self.embed(input_ids))
        out = self.decoder(self.embed(decoder_input_ids), memory, tgt_mask=self.causal.to(memory.dtype), tgt_is_causal=True)
        return cross_entropy(self.head(out).flatten(0, 1), labels.flatten())


@family(translation)
def torch_transformer():
    return Builtin()


class Lora(nn.Module):
    """A linear layer that stays, and a product of two low-rank ones that is trained."""

    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + nn.functional.linear(nn.functional.linear(x, self.lora_a), self.lora_b) * 2.0


@family(text_classes, loss=("cross_entropy(logits)", cross_entropy), options=("--train", "lora_|classifier"))
def lora():
    net = T.BertForSequenceClassification(without_dropout(T.BertConfig(**SIZES, num_labels=4)))
    for layer in net.bert.encoder.layer:
        layer.attention.self.query, layer.attention.self.value = Lora(layer.attention.self.query), Lora(layer.attention.self.value)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_("lora_" in name or "classifier" in name)
    return Run(net, lambda net, ids, mask: net(input_ids=ids, attention_mask=mask).logits)
