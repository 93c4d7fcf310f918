"""Exchange of models with Hugging Face's ``transformers``, which must be imported after this package."""

from mae_lm_fairseq.utils.hugging_face import hide_broken_torchaudio

hide_broken_torchaudio()
