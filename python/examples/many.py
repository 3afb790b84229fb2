"""Twenty sandboxes at once, one for each task of asyncio; their output is shown while they run."""

import asyncio

from sandcell import AsyncSandbox


async def solve(number: int) -> str:
    async with AsyncSandbox(memory_mb=128) as sandbox:
        heard: list[str] = []
        run = await sandbox.run(f"print('thinking', flush=True)\n{number} ** 2", on_stdout=heard.append)
        return f"{''.join(heard).strip()} {run.check().result}"


async def main() -> None:
    answers = await asyncio.gather(*(solve(number) for number in range(20)))
    print("\n".join(answers))


asyncio.run(main())
