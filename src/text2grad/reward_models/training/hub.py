"""A folder → a model of the Hugging Face hub."""

from pathlib import Path

from text2grad.errors import DataError, require


def push_folder(directory: Path, repository: str, *, private: bool = False) -> str:
    """Upload a folder to the Hugging Face hub as a model, and return its URL.

    huggingface_hub supplies the token (`hf auth login`, or HF_TOKEN).

    Raises:
        ConfigError: if huggingface_hub is missing.
        DataError: if the hub refuses the upload or cannot be reached.
    """
    require("huggingface_hub", extra="train", purpose="the hub")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    # The bases of HfHubHTTPError are OSError and the base error of the HTTP library, which depends on the version.
    failures: tuple[type[Exception], ...] = (*HfHubHTTPError.__bases__, ValueError)
    try:
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=directory)
    except failures as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise DataError(f"cannot push {directory} to {repository}: {why}. The folder is complete; try again") from error
    return str(address)
