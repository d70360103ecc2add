"""What jobs refuse, each with what to do."""


class PipelineError(Exception):
    """A job cannot do what it was asked for; nothing was changed."""


class FolderTaken(PipelineError):
    """Something is where the output is to go."""


class SourceInvalid(PipelineError):
    """What is to be loaded is not there, or not as it has to be."""
