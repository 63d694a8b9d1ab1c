#!/usr/bin/env python3
"""Opens ONNX models in Netron, in Chromium: each must be drawn, with as many nodes as it has.

    python check_netron.py MODEL.onnx...

Needs selenium, netron and onnx. Exits with 1 at the first expectation that does not hold.
"""
import pathlib
import socket
import sys
import time

import netron
import onnx
from selenium.webdriver.common.by import By

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_page import Wrong, chromium, expect  # noqa: E402

SECONDS = 60


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def check(driver, path):
    address = ("127.0.0.1", free_port())
    netron.start(str(path), address, browse=False)
    try:
        driver.get(f"http://{address[0]}:{address[1]}")
        end = time.monotonic() + SECONDS
        count = len(onnx.load(path, load_external_data=False).graph.node)
        while True:
            text = driver.find_element(By.TAG_NAME, "body").text
            for button in driver.find_elements(By.CSS_SELECTOR, ".message-button"):
                if button.is_displayed():
                    # The first page asks for consent to cookies; any other message is about the model.
                    expect(button.text == "Accept", f"{path}: Netron says: {text[:300]}")
                    button.click()
            shown = driver.execute_script("return document.querySelectorAll('#target g.node').length")
            drawn = driver.execute_script("return document.querySelectorAll('#target path.edge-path').length")
            if shown >= count and drawn:
                break
            expect(time.monotonic() < end, f"{path}: after {SECONDS} s Netron shows {shown} of {count} nodes: {text[:300]}")
            time.sleep(0.2)
        errors = [e["message"] for e in driver.get_log("browser") if e["level"] == "SEVERE" and "ERR_NAME_NOT_RESOLVED" not in e["message"]]
        expect(not errors, f"{path}: the console has {errors}")
        print(f"{path.name}: {shown} nodes, {drawn} edges")
    finally:
        netron.stop(address)


def main():
    driver = chromium()  # without a network: Netron reports its use where it has one
    try:
        for path in sys.argv[1:]:
            check(driver, pathlib.Path(path))
    except Wrong as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        driver.quit()
    return 0


if __name__ == "__main__":
    sys.exit(main())
