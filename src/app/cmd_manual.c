/* `smelt manual [FORM]`: the manual page and the shell completions. They are generated from the
 * tables of commands and options, so they always match the program. `make install` puts them into
 * the folders of man and the shells. */
#include <stdio.h>
#include <string.h>

#include "app/command.h"
#include "base/version.h"
#include "config/config.h"

/* Iterates over the commands that can be run. `*i` counts smelt's commands, `*j` the commands of
 * a group. NULL after the last one. The result is valid until the next call. */
static const Command *next_command(int *i, int *j) {
    const Command *command = command_smelt.member(*i);
    if (!command || !command->member) {
        ++*i;
        return command;
    }
    const Command *member = command->member((*j)++);
    if (member) return member;
    ++*i;
    *j = 0;
    return next_command(i, j);
}

/* -- The manual page (man 7 man) ----------------------------------------------------------------------------------- */

/* Prints plain text, with all troff instructions escaped. */
static void put_roff(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\\') fputs("\\e", stdout);
        else if (text[i] == '-') fputs("\\-", stdout);
        else if (text[i] == '|') fputs("|\\:", stdout); /* a long list of choices may be broken here */
        else if (strchr(".'", text[i]) && (i == 0 || text[i - 1] == '\n')) printf("\\&%c", text[i]);
        else putchar(text[i]);
    }
}

/* Prints the lines of an explanation; a line that begins with a space stays a separate line. */
static void put_explanation(const char *text) {
    for (size_t length; *text; text += length + (text[length] == '\n')) {
        length = strcspn(text, "\n");
        size_t start = strspn(text, " ");
        if (length == 0) fputs(".PP", stdout);
        else if (start) fputs(".IP\n", stdout);
        if (length) put_roff(text + start, length - start);
        putchar('\n');
    }
}

static void print_option_rows(const OptionTable *table) {
    for (size_t i = 0; i < table->count; i++) {
        char text[OPTIONS_EXPLANATION];
        const Option *option = &table->rows[i];
        options_explain(table, option, text);
        printf(".TP\n.BI %s= ", option->name);
        printf("\"");
        put_roff(option->initial, strlen(option->initial));
        printf("\"\n");
        put_roff(text, strlen(text));
        putchar('\n');
    }
}

static void print_page(void) {
    const Command *command;
    printf(".TH SMELT 1 \"\" \"smelt %s\" \"User Commands\"\n.SH NAME\nsmelt \\- train large language models\n", SMELT_VERSION);
    printf(".ad l\n.SH SYNOPSIS\n.B smelt\n.I COMMAND\n[\\fIkey\\fR=\\fIvalue\\fR ...]\n.SH DESCRIPTION\n");
    put_explanation(command_smelt.explanation);
    printf("\nSettings are given as \\fIkey\\fR=\\fIvalue\\fR and shown with their defaults.\n.SH COMMANDS\n");
    for (int i = 0, j = 0; (command = next_command(&i, &j));) {
        printf(".SS \"smelt %s %s\"\n", command->name, command->usage ? command->usage : command->words);
        put_explanation(command->explanation);
        print_option_rows(command->table);
    }
    printf(
        ".SH EXIT STATUS\n0 after success. 2 for a wrong command line or setting, 3 for data, 4 for memory, 5 for NaN or infinity, 6 for\n"
        "communication, 7 for checkpoints, 8 after a request to stop, 9 for a GPU, 1 for all else.\n");
}

/* -- Completions --------------------------------------------------------------------------------------------------- */

/* Prints one word that completes a row of a command. */
typedef void PutWord(const Command *command, const Option *option, const char *word);

/* Calls `put` with each word that completes a row: "key=" if any value may follow, otherwise
 * "key=value". */
static void each_word(const Command *command, const OptionTable *table, PutWord *put) {
    for (size_t i = 0; i < table->count; i++) {
        const Option *option = &table->rows[i];
        const char *choice = option->type == OPTION_BOOL ? "true|false" : option->type == OPTION_CHOICE ? option->choices : "";
        for (;; choice += strcspn(choice, "|") + 1) {
            char word[256];
            snprintf(word, sizeof word, "%s=%.*s", option->name, (int)strcspn(choice, "|"), choice);
            put(command, option, word);
            if (!strchr(choice, '|')) break;
        }
    }
}

static void put_word(const Command *command, const Option *option, const char *word) {
    (void)command;
    (void)option;
    printf(" %s", word);
}

static void each_word_of(const Command *command, PutWord *put) {
    each_word(command, command->table, put);
    if (command->takes_config) each_word(command, &config_table, put);
}

static const char *last_word(const char *name) { return strrchr(name, ' ') ? strrchr(name, ' ') + 1 : name; }

static void put_members(const Command *group) {
    for (int i = 0; group->member(i); i++) printf(" %s", last_word(group->member(i)->name));
}

/* Prints a function for bash and zsh that returns the words after a command; "" for the first
 * word. */
static void print_words_function(void) {
    const Command *command;
    printf("_smelt_words() {\n    case $1 in\n    '') echo");
    put_members(&command_smelt);
    printf(" help --version ;;\n");
    for (int i = 0; command_smelt.member(i); i++) {
        if (!command_smelt.member(i)->member) continue;
        printf("    %s) echo", command_smelt.member(i)->name);
        put_members(command_smelt.member(i));
        printf(" ;;\n");
    }
    for (int i = 0, j = 0; (command = next_command(&i, &j));) {
        printf("    '%s') echo", command->name);
        each_word_of(command, put_word);
        printf(" ;;\n");
    }
    printf("    esac\n}\n\n");
}

/* bash splits words at "=", unless COMP_WORDBREAKS lacks it; if it splits, only the part after "="
 * is replaced. */
static const char bash[] = "_smelt() {\n"
                           "    local line=${COMP_LINE:0:COMP_POINT} first=1 i key current files\n"
                           "    current=${line##*[[:space:]]}\n"
                           "    for ((i = 1; i < COMP_CWORD; i++)); do [[ ${COMP_WORDS[i]} == -- ]] && first=$((i + 1)); done\n"
                           "    ((COMP_CWORD > first)) && key=${COMP_WORDS[first]}\n"
                           "    case $key in data | bench) ((COMP_CWORD > first + 1)) && key+=\" ${COMP_WORDS[first + 1]}\" ;; esac\n"
                           "    COMPREPLY=($(compgen -W \"$(_smelt_words \"$key\")\" -- \"$current\"))\n"
                           "    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null\n"
                           "    [[ $current == *=* && $COMP_WORDBREAKS == *=* ]] && COMPREPLY=(\"${COMPREPLY[@]#*=}\")\n"
                           "    if [[ $key ]] && [[ $current != *=* || ! ${COMPREPLY[*]} ]]; then\n"
                           "        mapfile -t files < <(compgen -f -- \"${current#*=}\")\n"
                           "        COMPREPLY=(${COMPREPLY[@]:+\"${COMPREPLY[@]}\"} \"${files[@]}\")\n"
                           "    fi\n"
                           "}\n"
                           "complete -F _smelt smelt\n";

static const char zsh[] = "_smelt() {\n"
                          "    local first=${words[(I)--]} key= none=1\n"
                          "    local -a all\n"
                          "    ((first = first && first < CURRENT ? first + 1 : 2))\n"
                          "    ((CURRENT > first)) && key=$words[first]\n"
                          "    [[ $key == (data|bench) ]] && ((CURRENT > first + 1)) && key+=\" $words[first + 1]\"\n"
                          "    all=($(_smelt_words $key))\n"
                          "    compadd -S '' -- ${(M)all:#*=} && none=0\n"
                          "    compadd -- ${all:#*=} && none=0\n"
                          "    [[ -n $key && ($none == 1 || $PREFIX != *=*) ]] && { compset -P '*='; _files }\n"
                          "}\n"
                          "_smelt \"$@\"\n";

static void print_bash(void) {
    printf("# Completion of smelt for bash, made by `smelt manual bash`.\n");
    print_words_function();
    fputs(bash, stdout);
}

static void print_zsh(void) {
    printf("#compdef smelt\n# Completion of smelt for zsh, made by `smelt manual zsh`.\n");
    print_words_function();
    fputs(zsh, stdout);
}

static void put_fish_text(const char *text) {
    putchar('\'');
    for (; *text; text++) printf(strchr("'\\", *text) ? "\\%c" : "%c", *text);
    putchar('\'');
}

static void put_fish_word(const Command *command, const Option *option, const char *word) {
    printf("complete -c smelt -n '__smelt_in %s' -a '%s' -d ", command->name, word);
    put_fish_text(option->help);
    putchar('\n');
}

static void put_fish_members(const Command *group) {
    for (int i = 0; group->member(i); i++) {
        printf("complete -c smelt -f -n '__smelt_at \"%s\"' -a %s -d ", group->name, last_word(group->member(i)->name));
        put_fish_text(group->member(i)->summary);
        putchar('\n');
    }
}

static void print_fish(void) {
    const Command *command;
    printf("# Completion of smelt for fish, made by `smelt manual fish`.\n"
           "function __smelt_words\n"
           "    set -l words (commandline -opc)\n"
           "    set -e words[1]\n"
           "    set -l dashes (contains -i -- -- $words)\n"
           "    and set -e words[1..$dashes]\n"
           "    string join ' ' -- $words\n"
           "end\n"
           "function __smelt_at\n"
           "    set -l words (__smelt_words)\n"
           "    test \"$words\" = \"$argv\"\n"
           "end\n"
           "function __smelt_in\n"
           "    set -l words (__smelt_words)\n"
           "    string match -qr -- \"^$argv( |\\$)\" \"$words\"\n"
           "end\n");
    put_fish_members(&command_smelt);
    for (int i = 0; command_smelt.member(i); i++)
        if (command_smelt.member(i)->member) put_fish_members(command_smelt.member(i));
    for (int i = 0, j = 0; (command = next_command(&i, &j));) each_word_of(command, put_fish_word);
}

/* -- The command --------------------------------------------------------------------------------------------------- */

static bool run_manual(Invocation *invocation, Error *error) {
    static const struct {
        const char *name;
        void (*print)(void);
    } forms[] = {{"man", print_page}, {"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    const char *form = invocation->words[0] ? invocation->words[0] : "man";
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (!strcmp(forms[i].name, form)) {
            forms[i].print();
            return true;
        }
    return error_set(error, ERROR_USAGE, "'%s' is not a form of the manual: use man, bash, zsh or fish", form);
}

const Command command_manual = {
    .name = "manual",
    .summary = "print the manual page, or completions for a shell",
    .words = "[FORM]",
    .explanation = "Prints the manual page (man), or completions for bash, zsh or fish, from the tables of options.\n"
                   "  smelt manual | man -l -\n"
                   "  source <(smelt manual bash)\n",
    .table = &(const OptionTable){NULL, 0},
    .options_size = 1,
    .alone = true,
    .run = run_manual,
};
