"""Serves a Python function as a reward program or an environment of smelt: python3 reward_shim.py FILE.py FUNCTION. docs/rewards.md has the protocol."""
import importlib.util, json, os, sys, traceback

path, name = sys.argv[1], sys.argv[2]
answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # what the function prints is not an answer
sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
try:
    spec = importlib.util.spec_from_file_location("reward_functions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise AttributeError(f"it has no function {name}")
except BaseException as error:
    print(json.dumps({"error": f"{path} cannot be loaded: {type(error).__name__}: {error}"}), file=answers, flush=True)
    raise
for line in sys.stdin.buffer:
    request = json.loads(line)
    number, record = request.pop("id"), request.pop("record")
    try:
        result = function(**{"answer": None, **record, **request})
        if "turn" in request and isinstance(result, (str, list)):
            result = {"append": result}
        answer = dict(result) if isinstance(result, dict) else {"reward": result}
        if "append" not in answer or "reward" in answer:
            if isinstance(answer["reward"], (str, bytes, bytearray)):
                raise TypeError("the reward is a text: return a number")
            answer["reward"] = float(answer["reward"])
        text = json.dumps({**answer, "id": number})
    except Exception as error:
        traceback.print_exc()
        text = json.dumps({"error": f"{name} in {path} raised {type(error).__name__}: {error}", "id": number})
    print(text, file=answers, flush=True)
