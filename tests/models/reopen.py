"""Opens model folders in a Python that may have another transformers, and none of the harness; see ``families.reopen``.

python reopen.py OUT TEXT FOLDER...
"""

import sys
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer


def opened(folder: str, text: str) -> Any:
    """Return the log-probs of a row of tokens and the ids of a text, or what could not be opened."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, trust_remote_code=False
        ).eval()
    except Exception as error:  # whatever transformers makes of a folder
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    row = (torch.arange(40) * 7 % 280)[None]
    with torch.no_grad():
        log_probs = model(input_ids=row, use_cache=False).logits[0].log_softmax(-1)
    return {"log_probs": log_probs, "ids": tokenizer.encode(text)}


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    out, text, *folders = sys.argv[1:]
    torch.save({folder: opened(folder, text) for folder in folders}, out)
