"""Tags of Ollama's library that do not say what they stand for."""

from __future__ import annotations

OLLAMA_TAGS = {
    "codestral:latest": "codestral-22b",
    "command-r:35b": "command-r",
    **dict.fromkeys(("deepseek-coder-v2:latest", "deepseek-coder-v2:16b"), "deepseek-coder-v2-lite-instruct"),
    "deepseek-coder-v2:236b": "deepseek-coder-v2-instruct",
    "deepseek-r1:latest": "deepseek-r1-0528-qwen3-8b",
    "deepseek-r1:1.5b": "deepseek-r1-distill-qwen-1.5b",
    "deepseek-r1:7b": "deepseek-r1-distill-qwen-7b",
    "deepseek-r1:8b": "deepseek-r1-0528-qwen3-8b",
    "deepseek-r1:14b": "deepseek-r1-distill-qwen-14b",
    "deepseek-r1:32b": "deepseek-r1-distill-qwen-32b",
    "deepseek-r1:70b": "deepseek-r1-distill-llama-70b",
    "devstral:latest": "devstral-small-2507",
    "gemma2:latest": "gemma-2-9b",
    "gemma3:latest": "gemma-3-4b",
    "gpt-oss:latest": "gpt-oss-20b",
    **{f"granite4:{size}": f"granite-4.0-{size}" for size in ("350m", "1b")},
    **{f"granite4:{size}-h": f"granite-4.0-h-{size}" for size in ("350m", "1b", "micro", "tiny", "small")},
    **dict.fromkeys(("granite4", "granite4:latest", "granite4:micro"), "granite-4.0-micro"),
    "llama3:latest": "llama-3-8b",
    "llama3.1:latest": "llama-3.1-8b",
    "llama3.2:latest": "llama-3.2-3b",
    **dict.fromkeys(("llama3.2-vision", "llama3.2-vision:latest", "llama3.2-vision:11b"), "llama-3.2-11b-vision"),
    "llama3.3:latest": "llama-3.3-70b",
    "mistral:latest": "mistral-7b-v0.3",
    "mistral-nemo": "mistral-nemo-12b",
    "mixtral:latest": "mixtral-8x7b",
    "phi3.5:latest": "phi-3.5-mini",
    "phi4:latest": "phi-4",
    "qwen2.5:latest": "qwen2.5-7b",
    **{f"qwen2.5-coder:{size}": f"qwen2.5-coder-{size}-instruct" for size in ("1.5b", "7b", "14b", "32b")},
    "qwen2.5-coder:latest": "qwen2.5-coder-7b-instruct",
    "qwen3:latest": "qwen3-8b",
}
"""What tags of Ollama's library stand for that do not say it (https://ollama.com/library, each model's tags)."""
