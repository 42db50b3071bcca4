"""The random models of check_export.py and check_gguf.py, and random_run.c, which makes smelt's side of them and of check_families.py:
it is compiled with the libraries that the Makefile links."""
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

TEXT = "The quick brown fox jumps over the lazy dog, éàü: 東京!"
COMMON = ["data.length=128", "model.init_std=0.1", "precision=fp32"]
MODELS = {
    "zaya": ["model.family=zaya", "model.experts=4", "model.heads=4", "model.kv_heads=2", "model.head_dim=16", "model.width=48", "model.ffn=40",
             "model.router_width=24", "model.rope_fraction=0.5", "model.layers=3"],
    "zaya, window, own head, scaled rope": ["model.family=zaya", "model.experts=3", "model.heads=2", "model.kv_heads=1", "model.width=32", "model.ffn=40",
             "model.router_width=24", "model.layers=2", "model.window=9", "model.tied=false", "model.rope_factor=8", "model.rope_original_context=16"],
    "llama": ["model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=64", "model.ffn=96", "model.layers=3", "model.tied=false",
              "model.rope_theta=500000", "model.rope_factor=8", "model.rope_original_context=32"],
    "llama, tied": ["model.family=llama", "model.heads=4", "model.kv_heads=4", "model.width=64", "model.ffn=96", "model.layers=2", "model.head_dim=24"],
    "mistral (llama with a window)": ["model.family=llama", "model.heads=3", "model.kv_heads=1", "model.width=64", "model.head_dim=16", "model.ffn=96",
              "model.layers=2", "model.window=11"],
    "mixtral": ["model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=64", "model.ffn=40", "model.layers=3", "model.experts=5",
                "model.experts_per_token=2", "model.renormalise=true", "model.tied=false", "model.rope_factor=4", "model.rope_original_context=16"],
    "mixtral, window": ["model.family=llama", "model.heads=2", "model.kv_heads=2", "model.width=32", "model.ffn=40", "model.layers=2", "model.experts=4",
                "model.experts_per_token=3", "model.renormalise=true", "model.window=7"],
    "qwen2": ["model.family=llama", "model.heads=3", "model.kv_heads=1", "model.width=48", "model.ffn=96", "model.layers=3", "model.qkv_bias=true"],
    "qwen3": ["model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=48", "model.head_dim=20", "model.ffn=96", "model.layers=3",
              "model.qk_norm=true", "model.tied=false"],
    "qwen3_moe": ["model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.head_dim=24", "model.ffn=40", "model.layers=2",
                  "model.qk_norm=true", "model.experts=5", "model.experts_per_token=2", "model.renormalise=true", "model.tied=false"],
    "qwen3_moe, window and MLPs between": ["model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=48", "model.head_dim=20", "model.ffn=24",
                  "model.layers=5", "model.qk_norm=true", "model.experts=5", "model.experts_per_token=2", "model.experts_first=1", "model.experts_period=2",
                  "model.dense_ffn=96", "model.window=9"],
    "mpt": ["model.family=mpt", "model.heads=6", "model.kv_heads=6", "model.width=48", "model.ffn=192", "model.layers=2", "model.clip_qkv=0.7",
            "model.softmax_scale=0.4"],
    "olmoe": ["model.family=olmo", "model.heads=4", "model.kv_heads=4", "model.width=32", "model.ffn=40", "model.layers=2", "model.experts=5",
              "model.experts_per_token=2", "model.tied=false"],
    "gpt_oss": ["model.family=gpt_oss", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.head_dim=24", "model.ffn=40", "model.layers=3", "model.experts=5",
                "model.experts_per_token=2", "model.renormalise=true", "model.qkv_bias=true", "model.window=9", "model.window_period=2", "model.tied=false"],
    "gpt2": ["model.family=gpt2", "model.heads=3", "model.kv_heads=3", "model.width=48", "model.ffn=100", "model.layers=3"],
}


def build(build_folder, scratch):
    """The path of the program, in `scratch`; libsmelt.a is in `build_folder`."""
    program = os.path.join(scratch, "random_run")
    with open(os.path.join(ROOT, "Makefile")) as file:
        libraries = re.search(r"^LIBRARIES := (.*)$", file.read(), re.MULTILINE)[1].split()
    subprocess.run(["cc", "-std=gnu17", "-D_GNU_SOURCE", "-Isrc", "-Itests", "-o", program, "tests/golden/random_run.c",
                    os.path.join(os.path.abspath(build_folder), "libsmelt.a"), *libraries], check=True, cwd=ROOT)
    return program
