"""What stands at the end of each command's help: how it is called, and what its status means.

Invariants:
- Every command has an example, and every example is a call that the command would take.
"""

from typing import Final

EXIT_STATUS: Final = (
    "Exit status: 0, it worked; 1, it did not, and why is on standard error; "
    "2, the call was wrong, or the store does not exist."
)

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "": (
        "herdbook demo",
        "export HERDBOOK_URL=./data",
        "herdbook sql --create -c 'CREATE TABLE cow (id INT PRIMARY KEY)'",
        "herdbook blob mb photos && herdbook blob put -r ~/Pictures photos/",
    ),
    "demo": ("herdbook demo", "herdbook demo ~/Pictures --data ./demo"),
    "dev": ("herdbook dev", "herdbook dev --data ./cluster --nodes 5"),
    "serve": (
        "herdbook serve --data ./data",
        "herdbook serve --config node.toml --check",
        "herdbook serve --data ./node-1 --url herdbook://zk1:2181/prod --role bookie --role herd",
        "herdbook serve --config node.toml --set herd.listen=0.0.0.0:7180",
    ),
    "completion": (
        "herdbook completion bash > ~/.local/share/bash-completion/completions/herdbook",
        "herdbook completion zsh > ~/.zfunc/_herdbook",
        "herdbook completion fish > ~/.config/fish/completions/herdbook.fish",
    ),
    "sql": (
        "herdbook sql ./data",
        "herdbook sql ./data -c 'SELECT count(*) FROM cow' --json",
        "herdbook sql herdbook://zk1:2181/prod -t sales -f schema.sql",
    ),
    "export": (
        "herdbook export ./data cow cows.parquet",
        "herdbook export ./data 'SELECT id FROM cow WHERE milk > 20' good.csv",
    ),
    "import": (
        "herdbook import ./data cow cows.csv",
        "herdbook import ./data cow cows.parquet --commit-rows 100000",
    ),
    "changes": (
        "herdbook changes ./data",
        "herdbook changes ./data --after 12/345 --table cow --json",
    ),
    "checkpoint": ("herdbook checkpoint ./data", "herdbook checkpoint ./data -t sales"),
    "backup": ("herdbook backup ./data cows.herd", "herdbook backup ./data sales.herd -t sales"),
    "check-backup": ("herdbook check-backup cows.herd",),
    "restore": (
        "herdbook restore cows.herd ./other cows --create",
        "herdbook restore cows.herd herdbook://zk1:2181/prod cows",
    ),
    "restore-until": ("herdbook restore-until ./data default 12/345 yesterday",),
    "store": ("herdbook store backup /backups/farm", "herdbook store check /backups/farm"),
    "store backup": ("herdbook store backup /backups/farm --url ./data",),
    "store check": ("herdbook store check", "herdbook store check /backups/farm"),
    "store restore": ("herdbook store restore /backups/farm --url ./new",),
    "store upgrade": ("herdbook store upgrade --url herdbook://zk1:2181/prod",),
    "worker": (
        "herdbook worker --tasks farm --url ./data --processes 4",
        "herdbook worker --tasks farm --broker 127.0.0.1:7465 --places 20",
    ),
    "user": ("herdbook user add ann --admin", "herdbook user grant bob tablespace sales read"),
    "user add": (
        "herdbook user add ann --admin --url ./data",
        "herdbook user add robot --no-password",
        "herdbook user add bob --password-file - < password.txt",
    ),
    "user passwd": ("herdbook user passwd ann", "herdbook user passwd ann --password-file new.txt"),
    "user rm": ("herdbook user rm bob",),
    "user grant": (
        "herdbook user grant bob tablespace sales write",
        "herdbook user grant bob bucket letters read",
        "herdbook user grant robot tenant '*' write",
    ),
    "user revoke": ("herdbook user revoke bob tablespace sales",),
    "user token": (
        "herdbook user token robot --for 90d --note nightly",
        "herdbook user token robot --revoke 5f0c2ab81d6e9a34",
    ),
    "user ls": ("herdbook user ls", "herdbook user ls --json"),
    "zookeeper": ("herdbook zookeeper --data ./zookeeper --port 2181",),
    # Objects
    "blob": (
        "herdbook blob mb photos --create --url ./data",
        "herdbook blob put -r ~/Pictures photos/",
        "herdbook blob ls photos/2024/",
    ),
    "blob put": (
        "herdbook blob put elsa.jpg photos/2024/elsa.jpg",
        "herdbook blob put -r ~/Pictures photos/",
        "tar c ./farm | herdbook blob put - backups/farm.tar",
    ),
    "blob get": (
        "herdbook blob get photos/2024/elsa.jpg",
        "herdbook blob get -r photos/2024 ./2024",
    ),
    "blob cat": (
        "herdbook blob cat backups/farm.tar | tar t",
        "herdbook blob cat logs/today.txt --offset 1000 --length 200",
    ),
    "blob rm": ("herdbook blob rm photos/2024/elsa.jpg", "herdbook blob rm -r photos/2024"),
    "blob cp": ("herdbook blob cp photos/elsa.jpg photos/best/elsa.jpg",),
    "blob mv": ("herdbook blob mv -r photos/2024 photos/old",),
    "blob concat": ("herdbook blob concat logs/all.txt logs/1.txt logs/2.txt",),
    "blob mb": (
        "herdbook blob mb photos --create --url ./data",
        "herdbook blob mb cache --ttl-ms 86400000 --compression zstd",
    ),
    "blob rb": ("herdbook blob rb photos", "herdbook blob rb photos --force"),
    "blob ls": ("herdbook blob ls", "herdbook blob ls -l photos/2024/"),
    "blob stat": ("herdbook blob stat photos", "herdbook blob stat photos/elsa.jpg --locations"),
    "blob du": ("herdbook blob du", "herdbook blob du photos/2024/"),
    "blob buckets": ("herdbook blob buckets", "herdbook blob buckets --json"),
    "blob move": (
        "herdbook blob move photos",
        "herdbook blob move photos --to blobs__pool_2",
    ),
    "blob pool": (
        "herdbook blob pool",
        "herdbook blob pool --buckets 500 --objects 5000000",
    ),
    "blob quota": (
        "herdbook blob quota photos",
        "herdbook blob quota photos --bytes 10GiB --objects 1000000",
    ),
    "blob gc": ("herdbook blob gc --dry-run", "herdbook blob gc photos"),
    # Ledgers
    "ledger": ("herdbook ledger ls --url ./data", "herdbook ledger show 7"),
    "ledger ls": ("herdbook ledger ls --url ./data", "herdbook ledger ls --degraded --json"),
    "ledger show": ("herdbook ledger show 7",),
    "ledger read": (
        "herdbook ledger read 7",
        "herdbook ledger read 7 --first 100 --last 199 --json",
    ),
    "ledger recover": ("herdbook ledger recover 7",),
    "ledger delete": ("herdbook ledger delete 7 8 9", "herdbook ledger delete 7 --yes"),
    # Tasks
    "task": (
        "herdbook task submit weigh cow=elsa --wait-ms 10000",
        "herdbook task ls --status running",
        "herdbook task set resource database 5",
    ),
    "task submit": (
        "herdbook task submit weigh cow=elsa kilos=600 --tenant acme",
        "herdbook task submit weigh cow=elsa --attempts-max 3 --wait-ms 10000",
    ),
    "task serve": (
        "herdbook task serve --url ./data",
        "herdbook task serve --url herdbook://zk1:2181/prod --state ./broker --grpc 10.0.0.7:7465",
    ),
    "task workers": ("herdbook task workers",),
    "task resources": ("herdbook task resources --json",),
    "task slots": ("herdbook task slots",),
    "task schedules": ("herdbook task schedules",),
    "task schedule": (
        "herdbook task schedule morning weigh cow=elsa --cron '0 6 * * *' --zone Europe/Vienna",
        "herdbook task schedule morning --remove",
    ),
    "task pause": ("herdbook task pause tenant:acme --reason 'their database is down'",),
    "task resume": ("herdbook task resume tenant:acme",),
    "task set": (
        "herdbook task set resource database 5",
        """herdbook task set tenant acme '{"weight": 2.0, "maximum": 20}'""",
        "herdbook task set tenant acme --remove",
    ),
    "task ls": ("herdbook task ls --status waiting --tenant acme", "herdbook task ls --json"),
    "task dead": ("herdbook task dead --type weigh",),
    "task show": ("herdbook task show 4711",),
    "task cancel": ("herdbook task cancel 4711 4712",),
    "task retry": ("herdbook task retry 4711",),
    "task delete": ("herdbook task delete 4711",),
    "task rollout": ("herdbook task rollout start restart.json", "herdbook task rollout ls"),
    "task rollout start": ("herdbook task rollout start restart.json",),
    "task rollout ls": ("herdbook task rollout ls",),
    "task rollout show": ("herdbook task rollout show restart --notes",),
    "task rollout pause": ("herdbook task rollout pause restart --why 'one node looks ill'",),
    "task rollout resume": ("herdbook task rollout resume restart",),
    "task rollout cancel": ("herdbook task rollout cancel restart",),
    "task rollout clear": ("herdbook task rollout clear restart node-7",),
    "task rollout remove": ("herdbook task rollout remove restart",),
    # The machines
    "bookie": (
        "herdbook bookie --data /disk1 --zookeeper zk1:2181/prod --listen cow:3181",
        "herdbook bookie ls --url herdbook://zk1:2181/prod",
    ),
    "bookie ls": ("herdbook bookie ls --url herdbook://zk1:2181/prod",),
    "bookie info": ("herdbook bookie info 5f2c6e01a3b4",),
    "bookie check": ("herdbook bookie check", "herdbook bookie check 5f2c6e01a3b4 --json"),
    "bookie gc": ("herdbook bookie gc", "herdbook bookie gc 5f2c6e01a3b4 --confirm"),
    "bookie decommission": (
        "herdbook bookie decommission 5f2c6e01a3b4 --wait",
        "herdbook bookie decommission 5f2c6e01a3b4 --cancel",
    ),
    "bookie forget": ("herdbook bookie forget 5f2c6e01a3b4",),
    "herd": (
        "herdbook herd node --data ./node --url herdbook://zk1:2181/prod --listen 10.0.0.7:7180",
        "herdbook herd tablespaces --url herdbook://zk1:2181/prod",
    ),
    "herd node": (
        "herdbook herd node --data ./node --url herdbook://zk1:2181/prod --listen 10.0.0.7:7180",
    ),
    "herd tablespaces": ("herdbook herd tablespaces",),
    "herd check": ("herdbook herd check sales",),
    "herd nodes": ("herdbook herd nodes --json",),
    "herd create": ("herdbook herd create sales --replicas 3",),
    "herd drop": ("herdbook herd drop sales",),
    "herd move-leader": ("herdbook herd move-leader sales 5f2c6e01a3b4",),
    "herd add-replica": ("herdbook herd add-replica sales 5f2c6e01a3b4",),
    "herd remove-replica": ("herdbook herd remove-replica sales 5f2c6e01a3b4",),
    "herd set-replicas": (
        "herdbook herd set-replicas sales 5",
        "herdbook herd set-replicas sales default",
    ),
    "herd default-replicas": (
        "herdbook herd default-replicas",
        "herdbook herd default-replicas 5",
    ),
    "repair": ("herdbook repair status", "herdbook repair scrub --wait"),
    "repair status": ("herdbook repair status --url herdbook://zk1:2181/prod",),
    "repair off": ("herdbook repair off --reason 'new disks until noon'",),
    "repair on": ("herdbook repair on",),
    "repair forget-log": ("herdbook repair forget-log herd/sales",),
    "repair scrub": ("herdbook repair scrub", "herdbook repair scrub 7 8 --wait"),
    # Spark
    "pipeline": ("herdbook pipeline usage --url ./data", "herdbook pipeline scrub --bucket photos"),
    "pipeline usage": (
        "herdbook pipeline usage --url ./data --bucket cows --depth 2",
        "herdbook pipeline usage --depth 1 --json",
    ),
    "pipeline tasks": (
        "herdbook pipeline tasks --url herdbook://zk1:2181/prod",
        "herdbook pipeline tasks --json",
    ),
    "pipeline scrub": (
        "herdbook pipeline scrub --bucket cows",
        "herdbook pipeline scrub --ledgers all",
        "herdbook pipeline scrub --ledgers 7,12 --json",
    ),
    "pipeline export": (
        "herdbook pipeline export cows --to ./cows --partition-by breed",
        "herdbook pipeline export --changes --to ./changes --partition-by _table",
    ),
    "pipeline load": (
        "herdbook pipeline load ./photos --bucket cows --table photos",
        "herdbook pipeline load ./rows.parquet --rows --name-column id --bucket cows",
    ),
}
"""By the words that call a command; "" is the whole."""


def epilog_of(path: tuple[str, ...]) -> str | None:
    """The end of a command's help, None for one without an example."""
    found = EXAMPLES.get(" ".join(path))
    if not found:
        return None
    lines = "\n".join(f"  {each}" for each in found)
    return f"\b\nExamples:\n{lines}\n\n{EXIT_STATUS}"
