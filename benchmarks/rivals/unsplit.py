"""What the rivals are made of: the text decoder as a checkpoint of its own, and the whole decoder as one ONNX graph.

    python unsplit.py CHECKPOINT OUT_FOLDER

The one graph has the parts of the split ones (fastv_trt.export.graphs) and no cut: for comparison only.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from fastv_trt.export import checkpoint as source
from fastv_trt.export import graphs, writer
from fastv_trt.export.decoder import Decoder, run_layers


class Whole(graphs.Prefix):
    """Embedding, image merge, every layer, norm and the last token's logits."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        image_features: Tensor,
        position_ids: Tensor,
        slots: Tensor,
        write_index: Tensor,
        *rest: Tensor,
    ) -> tuple[Tensor, ...]:
        (merged, _), decoder = self.merge(input_ids, image_features), self.decoder
        hidden, present = run_layers(decoder, 0, self.k, merged, position_ids, slots, write_index, graphs.pair(0, rest))
        return (decoder.lm_head(decoder.norm(hidden[:, -1:])), *graphs.flat(present))


def main() -> None:
    folder, final = sys.argv[1], Path(sys.argv[2])
    out = final.with_name(f".{final.name}.partial")  # renamed when it is complete
    shutil.rmtree(out, ignore_errors=True)
    (out / "scratch").mkdir(parents=True)
    checkpoint = source.inspect_checkpoint(folder, 1)
    config = checkpoint.config
    model: Any = source.load(checkpoint, torch.float32, out / "scratch")[0]
    decoder, image_tokens = Decoder.of(model), (int(config.image_token_id),)
    layers = len(decoder.layers)
    text: Any = AutoModelForCausalLM.from_config(model.config.get_text_config(), dtype=torch.float32)
    text.get_decoder().load_state_dict(model.get_decoder().state_dict())
    text.get_output_embeddings().load_state_dict(model.get_output_embeddings().state_dict())
    text.save_pretrained(out / "text")
    AutoTokenizer.from_pretrained(folder).save_pretrained(out / "text")
    del text
    cut = graphs.prefix(decoder, layers, image_tokens)
    caches = [record for record in cut.results if record.name.startswith("present.")]
    logits = graphs.tensor_record("logits", torch.float32, ("B", 1, decoder.lm_head.out_features))
    whole = Whole(decoder, layers, image_tokens)
    writer.write(graphs.Traceable(whole, cut.arguments, (logits, *caches), decoder, cut.variadic), out / "whole.onnx")
    del model, decoder, whole, cut
    shutil.rmtree(out / "scratch")
    out.rename(final)


if __name__ == "__main__":
    main()
