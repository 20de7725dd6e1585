"""`tidemill completion SHELL`: prints what completes commands, options, presets and runs when sourced by a shell."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tidemill.config.presets import FOLDER
from tidemill.settings.argument_parser import ArgumentParser

_ABOUT = """Print the completion of a shell: commands, their options, presets and runs.

  cd ~/.local/share/bash-completion/completions
  tidemill completion bash > tidemill
  tidemill completion zsh > ~/.zsh/_tidemill  # a folder of $fpath
  tidemill completion fish > ~/.config/fish/completions/tidemill.fish

zsh can also source it after compinit. Options are those of `tidemill COMMAND
--help all`. The shell reads them when they are first needed, so they never need
an update."""

# Wide, so that --help breaks no option over two lines. An algorithm on the line changes the options.
_BASH = r"""
declare -gA _tidemill_known

_tidemill_options() {  # COMMAND [ALGORITHM]: the words of its help that are options
    local key="$1 $2"
    if [[ -z ${_tidemill_known[$key]-} ]]; then
        _tidemill_known[$key]=$(COLUMNS=500 tidemill "$1" ${2:+--agent.algorithm "$2"} --help all 2>/dev/null |
            grep -oE -- '--[a-z][a-z0-9._-]*' | sort -u)
    fi
    _tidemill_words=${_tidemill_known[$key]}
}

_tidemill_commands() {  # the words that begin a line of the list, and those of the line of services
    if [[ -z ${_tidemill_known[commands]-} ]]; then
        _tidemill_known[commands]=$(tidemill --help 2>/dev/null |
            sed -n -e 's/^  \([a-z][a-z-]*\)  .*/\1/p' -e '/^  [a-z-]*, /{s/:.*//;s/,//g;p;}')
    fi
    _tidemill_words=${_tidemill_known[commands]}
}

_tidemill_runs() {  # folders below runs/ that hold one; compgen -W would execute $(...) in their names
    local file
    for file in runs/*/config.yaml runs/*/*/config.yaml; do
        [[ -f $file && ${file%/config.yaml} == "$current"* ]] && COMPREPLY+=("${file%/config.yaml}")
    done
}

_tidemill_files() {  # [OPTION...]: of compgen
    local file
    while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen -f "$@" -- "$current")
}

_tidemill() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} algorithm= i
    for ((i = 2; i < COMP_CWORD - 1; i++)); do
        [[ ${COMP_WORDS[i]} == --agent.algorithm ]] && algorithm=${COMP_WORDS[i + 1]}
    done
    COMPREPLY=() _tidemill_words=
    if ((COMP_CWORD == 1)); then
        _tidemill_commands
    elif [[ $previous == --config || ($command == configs && $COMP_CWORD == 2) ]]; then
        _tidemill_words=$(for file in @PRESETS@/*.yaml; do basename "$file" .yaml; done)
        _tidemill_files -X '!*.yaml'
    elif [[ $command == ctl && $COMP_CWORD == 2 ]]; then
        _tidemill_words="pause resume checkpoint stop"
    elif [[ $command == completion && $COMP_CWORD == 2 ]]; then
        _tidemill_words="bash zsh fish"
    elif [[ $current == -* ]]; then
        _tidemill_options "$command" "$algorithm"
    else
        _tidemill_runs
        _tidemill_files
    fi
    COMPREPLY+=($(compgen -W "$_tidemill_words" -- "$current"))
}
""".strip()

_FISH = r"""
function __tidemill_options
    set -l words (commandline -opc)
    set -l algorithm
    for i in (seq 3 (math (count $words) - 1))
        test $words[$i] = --agent.algorithm; and set algorithm --agent.algorithm $words[(math $i + 1)]
    end
    set -l key __tidemill_known_(string escape --style=var -- "$words[2] $algorithm")
    if not set -q $key
        set -l text (COLUMNS=500 tidemill $words[2] $algorithm --help all 2>/dev/null)
        set -g $key (string match -ra -- '--[a-z][a-z0-9._-]*' $text | sort -u)
    end
    string join \n -- $$key
end

function __tidemill_previous
    set -l words (commandline -opc)
    test "$words[-1]" = $argv[1]
end

function __tidemill_runs
    for file in runs/*/config.yaml runs/*/*/config.yaml
        string replace /config.yaml '' -- $file
    end
end

function __tidemill_commands
    set -l text (tidemill --help 2>/dev/null)
    string replace -rf '^  ([a-z][a-z-]*)  +(.*)' '$1\t$2' -- $text
    string replace -rf '^  ([a-z-]+, .*):.*' '$1' -- $text | string split ', '
end

function __tidemill_presets
    string replace -r '.*/(.*)\.yaml$' '$1' -- @PRESETS@/*.yaml
end

function __tidemill_wants_option
    not __fish_use_subcommand; and string match -q -- '-*' (commandline -ct)
end

complete -c tidemill -n __fish_use_subcommand -f -a '(__tidemill_commands)'
complete -c tidemill -n __tidemill_wants_option -f -a '(__tidemill_options)'
complete -c tidemill -n '__tidemill_previous --config; or __tidemill_previous configs' -a '(__tidemill_presets)'
complete -c tidemill -n 'not __fish_use_subcommand' -a '(__tidemill_runs)'
complete -c tidemill -n '__tidemill_previous ctl' -f -a 'pause resume checkpoint stop'
complete -c tidemill -n '__tidemill_previous completion' -f -a 'bash zsh fish'
""".strip()

_SCRIPTS = {
    "bash": f"# bash completion of tidemill\n{_BASH}\n\ncomplete -o filenames -F _tidemill tidemill",
    # zsh runs bash's completions; a file of $fpath is called as the function, the first time too.
    "zsh": f"#compdef tidemill\nautoload -Uz bashcompinit && bashcompinit\n{_BASH}\n\n"
    "complete -o filenames -F _tidemill tidemill",
    "fish": f"# fish completion of tidemill\n{_FISH}",
}


def completion(argv: Sequence[str]) -> int:
    """Print the script of a shell; return the exit code."""
    parser = ArgumentParser(
        prog="tidemill completion", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shell", choices=_SCRIPTS, help="shell whose completion to print")
    print(_SCRIPTS[parser.parse_args(list(argv)).shell].replace("@PRESETS@", str(FOLDER).replace(" ", r"\ ")))
    return 0
