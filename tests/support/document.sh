#!/bin/bash
# Runs the commands of a document in the order in which they stand, in the current folder: the blocks that open with "```sh". A block that opens with
# "```sh (needs a GPU)" and the like does not run; its commands are listed. Models and configurations are small here: the command `smelt` below
# shrinks them. Usage: document.sh DOCUMENT, with SMELT and a text in the file `text`
set -e
repository=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
document=$repository/$1
mkdir -p build my-texts
cp text my-texts/a.txt
ln -s "$repository/configs" "$repository/tools" .

cat >build/smelt <<'END'
#!/bin/bash
set -e
# With init= a model's own sizes hold.
small() {
    case " $* " in *" init="*) sed -i '/^model:/,/^[a-z]*:/{/^model:/d;/^ /d}' "$1" ;; esac
    sed -i -E 's/^  (width|ffn|router_width): [0-9]+/  \1: 32/; s/^  (heads|kv_heads): [0-9]+/  \1: 2/; /^  head_dim:/d; s/^  (warmup|decay): [0-9]+/  \1: 0/
        s/^  (length|context): [0-9KiM]+/  \1: 32/; s/^  tokens: [0-9KiM]+/  tokens: 256/; s/^  sequences: [0-9]+/  sequences: 2/
        s/^steps: .*/steps: 4/; s/^  every: .*/  every: 2/' "$1"
}
launch=()
if [ "$1" = launch ]; then
    while [ "$1" != -- ]; do launch+=("$1"); shift; done
    launch+=(--); shift
fi
case "$1 $2" in
watch* | serve*) timeout 1 "$SMELT" "$@" port=0 || [ $? = 124 ] ;;
chat*) if [ -p /dev/stdin ]; then "$SMELT" "$@"; else echo the model | "$SMELT" "$@"; fi ;;
"train --example") "$SMELT" "$@" >example.yaml; small example.yaml; cat example.yaml ;;
train*.yaml)
    cp "$2" small.yaml; small small.yaml "$@"; shift 2
    case " $* " in *" data.train="*) ;; *) set -- data.train=my-texts "$@" ;; esac
    exec "$SMELT" "${launch[@]}" train small.yaml threads=1 device=cpu "$@" ;;
*) exec "$SMELT" "${launch[@]}" "$@" ;;
esac
END
chmod +x build/smelt
PATH=$PWD/build:$PATH

# What documents take for granted: MODEL, a folder with a chat template; conversations and preferences; a finished run; prompts.
smelt train --example llama >model.yaml
smelt data train-tokenizer my-texts/ tok.json vocabulary=300
smelt train model.yaml run=runs/a data.train=my-texts/ data.tokenizer=tok.json steps=150 checkpoint.every=50 checkpoint.keep=9
smelt convert runs/a MODEL
printf '{%% for m in messages %%}{{ m.role[:1] }}: {{ m.content }}\n{%% endfor %%}' >FILE
cp FILE MODEL/chat_template.jinja
for i in $(seq 60); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"the model\"}, {\"role\": \"assistant\", \"content\": \"is lost $i\"}]}" >>chats.jsonl
    echo "{\"prompt\": \"the model\", \"chosen\": \" is found $i\", \"rejected\": \" is lost\"}" >>pairs.jsonl
done
cp chats.jsonl alpaca.jsonl
{ printf '['; for i in $(seq 60); do
    printf '%s{"id": "%s", "conversations": [{"from": "human", "value": "the model"}, {"from": "gpt", "value": "is lost %s"}]}' "${comma-}" $i $i; comma=,
done; printf ']'; } >sharegpt.json
for i in $(seq 60); do
    turn='"conversations": [{"from": "human", "value": "is"}]'
    echo "{$turn, \"chosen\": {\"from\": \"gpt\", \"value\": \"so $i\"}, \"rejected\": {\"from\": \"gpt\", \"value\": \"no\"}}" >>preferences.jsonl
done
mkdir -p fineweb/data
cp "$repository"/tests/golden/parquet/texts-d*.parquet fineweb/data
echo '{"prompt": "the model"}' >PROMPTS.jsonl
IDS=300-301

awk '/^```/ { block = !block; runs = $0 == "```sh"; skips = $0 ~ /^```sh \(/; why = $0; sub(/^```sh /, "", why); next }
    runs { print }
    skips { print "not run " why ": " $0 >"/dev/stderr" }' "$document" >commands
set -x
. ./commands
