"""`herdbook completion`: what a shell needs to complete the words of this command.

Each script hands the line, up to where somebody types, to `herdbook completion SHELL --line`, which
answers a suggestion a line: a word, a tab, what it means.
"""

from enum import StrEnum
from typing import Annotated, Final

import typer


class Shell(StrEnum):
    """The shells that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


SCRIPTS: Final = {
    Shell.BASH: """\
_herdbook() {
    local line IFS=$'\\n'
    COMPREPLY=()
    for line in $(herdbook completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null); do
        COMPREPLY+=("${line%%$'\\t'*}")
    done
    [[ ${COMPREPLY[0]} == */ ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o bashdefault -o default -F _herdbook herdbook
""",
    Shell.ZSH: """\
#compdef herdbook
_herdbook() {
    local line
    local -a found
    for line in "${(@f)$(herdbook completion zsh --line "${words[1,CURRENT]}" 2>/dev/null)}"; do
        [[ -n $line ]] && found+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    done
    if (( $#found )); then _describe -V herdbook found; else _files; fi
}
if [[ $funcstack[1] == _herdbook ]]; then _herdbook "$@"; else compdef _herdbook herdbook; fi
""",
    Shell.FISH: """\
function __herdbook
    herdbook completion fish --line (commandline -cp) 2>/dev/null
end
complete -c herdbook -a '(__herdbook)'
""",
}


def completion(
    shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")],
    line: Annotated[
        str | None, typer.Option(hidden=True, help="Print what can complete this line.")
    ] = None,
) -> None:
    """Print what makes a shell complete this command's words."""
    if line is None:
        typer.echo(SCRIPTS[shell], nl=False)
        return
    from typer.main import get_command

    from herdbook.cli.completing import complete
    from herdbook.cli.main import app

    for found in complete(get_command(app), line):
        typer.echo(f"{found.word}\t{found.meaning}")
