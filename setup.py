from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="mae_lm_fairseq",
    version="0.2.0",
    description="Masked language models that never show [MASK] to the encoder, as a fairseq extension",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["mae_lm_fairseq", "mae_lm_fairseq.*"]),
    package_data={"mae_lm_fairseq.study": ["plans/*.toml"], "mae_lm_fairseq": ["*/*.toml", "*/*/*.toml"]},
    python_requires=">=3.11,<3.14",
    install_requires=[
        # The build of fairseq 0.12 that current pip installs and Python 3.11 imports. Nobody develops fairseq any more.
        "fairseq-fixed>=0.12.3.1",
        # Before 2.6, torch.load runs code in pickles by default, and fairseq loads checkpoints with that default.
        "torch>=2.6",
        # fairseq 0.12 was written for much older versions; with fairseq_patches/ it works with 2.4 and 2.5.
        "numpy>=1.24,<2.6",
        # Older versions do not return the position of each piece in the text.
        "sentencepiece>=0.2.2",
        "safetensors",
        "tqdm",
    ],
    entry_points={"console_scripts": ["mae-lm = mae_lm_fairseq.cli:main"]},
    extras_require={
        "analysis": ["matplotlib", "pandas>=2", "scikit-learn", "scipy", "tensorboardX"],
        "parquet": ["pyarrow"],
        "corpora": ["pyarrow", "zstandard"],
        "dask": ["distributed"],
        # For tokenizers other than sentencepiece. It brings the Hugging Face hub's client and its dependencies.
        "tokenizers": ["tokenizers>=0.21"],
        # Both transformers and this package read sentencepiece models with protobuf.
        "hf": ["transformers>=4.57", "protobuf", "accelerate>=1.1"],
        "onnx": ["onnxscript", "onnxruntime"],
        # For --attention-backend fused: the version that torch's builds for CUDA require (constraints.txt).
        "kernels": ["triton>=3.6"],
        "test": [
            "pytest",
            "import-linter",
            "markdown-it-py",
            "psutil",
            "pytest-timeout",
            "pytest-xdist",
            "coverage>=7.10",
            "datasets",
            "distributed",
            "hypothesis",
            "pyarrow",
            "ruff",
            "sentence-transformers",
            # The entity metrics are compared with it.
            "seqeval",
            # The first that builds wheels without the package wheel.
            "setuptools>=70.1",
            "torchmetrics",
            "zstandard",
        ],
    },
)
