%(complete_func)s() {
    local response type value
    COMPREPLY=()
    response=$(env COMP_WORDS="${COMP_LINE:0:COMP_POINT}" COMP_CWORD="${COMP_WORDS[COMP_CWORD]}" %(complete_var)s=bash_complete "$1")
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                COMPREPLY+=("$value")
                [[ $value == *= ]] && compopt -o nospace
                ;;
        esac
    done <<< "$response"
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
