from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="mae_lm_fairseq",
    version="0.1.0",
    description="Masked language models that never show [MASK] to the encoder, as a fairseq extension",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["mae_lm_fairseq", "mae_lm_fairseq.*"]),
    python_requires=">=3.11,<3.14",
    install_requires=[
        # The maintained build of fairseq 0.12 that current pip installs and Python 3.11 imports.
        "fairseq-fixed>=0.12.3.1",
        # Below 2.6 torch.load executes pickles by default, and fairseq loads checkpoints with that default.
        "torch>=2.6",
        # fairseq 0.12 was written for much older versions; with 2.4 it was seen to work, fairseq_patches/ helps.
        "numpy>=1.24,<2.5",
        # 0.2.2 tells where in the text each piece comes from.
        "sentencepiece>=0.2.2",
        "safetensors",
        "tqdm",
    ],
    extras_require={
        "analysis": ["matplotlib", "scikit-learn", "scipy", "tensorboardX"],
        "parquet": ["pyarrow"],
        # transformers reads sentencepiece's models with protobuf, as we do.
        "hf": ["transformers>=4.57", "protobuf"],
        "onnx": ["onnxscript", "onnxruntime"],
        "fuzz": ["atheris"],
        "test": [
            "pytest",
            "import-linter",
            "pytest-timeout",
            "pytest-xdist",
            "coverage>=7.10",
            "hypothesis",
            "pyarrow",
            "ruff",
            "sentence-transformers",
            "torchmetrics",
        ],
    },
)
